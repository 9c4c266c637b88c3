#include "tieshard/core/failures/recognise.h"

#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/failures/checklist.h"
#include "tieshard/core/failures/tie_evidence.h"

namespace tieshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// "failure phase parameter" of each that `log` shows.
std::vector<std::string> failures_in(const std::string& log) {
  std::istringstream text(log);
  const LogFacts facts = read_log(text);
  std::vector<std::string> result;
  for (const Recognised& found : recognise(facts).failures) {
    result.push_back(concat(found.failure->id, " ", id(found.phase()), " ", found.match.parameter));
  }
  return result;
}

TEST(Recognise, TheMessagesOfTheWriteUps) {
  EXPECT_THAT(failures_in("KeyError: 'lm_head.weight'\n"), ElementsAre("tied-name-missing shard lm_head.weight"));
  EXPECT_THAT(failures_in("RuntimeError: shape mismatch: tied lm_head expects (32000, 2880), got (2880, 32000)\n"),
              ElementsAre("tie-shape materialize lm_head.weight"));
  EXPECT_THAT(
      failures_in("RuntimeError: Materialization failed: parameter 'lm_head.weight' was already materialized by tie\n"),
      ElementsAre("tie-materialized-twice materialize lm_head.weight"));
  EXPECT_THAT(failures_in("RuntimeError: Expected all tensors to be on the same device, but found at least two "
                          "devices,\ncuda:0 and meta\n"),
              ElementsAre("left-on-meta materialize "));
  EXPECT_THAT(failures_in("KeyError: \"A parameter in the optimizer couldn't be switched to its sharded version. This "
                          "likely means that the "
                          "optimizer was created before the module was wrapped.\"\n"),
              ElementsAre("optimizer-not-switched optimizer "));
}

TEST(Recognise, ByStructureWhateverTheWordsBetween) {
  EXPECT_THAT(failures_in("KeyError: 'model.decoder.shared_head.weight'\n"),
              ElementsAre("tied-name-missing shard model.decoder.shared_head.weight"));
  EXPECT_THAT(
      failures_in(
          "KeyError: \"One parameter of this optimizer has no sharded version: model.layers.3.mlp.up_proj.weight\"\n"),
      ElementsAre("optimizer-not-switched optimizer model.layers.3.mlp.up_proj.weight"));
  EXPECT_THAT(failures_in("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"),
              ElementsAre("out-of-memory step "));
  EXPECT_THAT(
      failures_in(
          "Traceback (most recent call last):\n  File \"/a/modeling_utils.py\", line 1, in from_pretrained\n    x\n"
          "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory\n"),
      ElementsAre("out-of-memory materialize "));
}

TEST(Recognise, WhatThePeersSay) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"RuntimeError: FSDP parameters should be materialized from meta device before training, but the following were "
       "still on meta device: ['lm_head.weight']\n",
       "left-on-meta materialize lm_head.weight"},
      {"RuntimeError: Tensor.item() cannot be called on meta tensors\n", "left-on-meta materialize "},
      {"KeyError: \"Parameter 'lm_head.weight' found in sharded model state dict but missing from full state dict. "
       "Full "
       "state dict has 3 keys, sharded has 4 keys.\"\n",
       "tied-name-missing materialize lm_head.weight"},
      {"ValueError: Could not find the transformer layer class GPT2Block in the model.\n", "layer-class-absent shard "},
      {"RuntimeError: The weights trying to be saved contained shared tensors [{'model.embed_tokens.weight', "
       "'lm_head.weight'}] which are not properly defined. We found\n",
       "shared-tensors-saved save lm_head.weight"},
      {"ValueError: fully_shard doesn't support scalar parameters. Change foo.scale to a 1D tensor with numel equal to "
       "1.\n",
       "scalar-parameter shard foo.scale"},
      {"RuntimeError: Error(s) in loading state_dict for M:\n\tsize mismatch for model.embed_tokens.weight: copying a "
       "param with shape torch.Size([8, 4]) from checkpoint, the shape in current model is torch.Size([0]).\n",
       "partition-used step model.embed_tokens.weight"},
      {"RuntimeError: 'weight' must be 2-D\n", "partition-used step "},
      {"RuntimeError: size mismatch, got input (8), mat (8x8), vec (0)\n", "partition-used step "},
      {"AssertionError: {'id': 0, 'status': 'NOT_AVAILABLE', 'numel': 0, 'ds_shape': (0,)}\n", "partition-used step "},
      {"RuntimeError: still have inflight params [{'id': 3}]\n", "unit-out-of-order step "},
      {"AssertionError: expected to be in states [1] but current state is TrainingState.IDLE\n",
       "unit-out-of-order step "},
      {"ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32\n",
       "unit-not-uniform shard "},
      {"NotImplementedError: Weight tying is not supported with pipeline parallelism\n", "ties-refused shard "},
      {"Traceback (most recent call last):\n  File \"/t/state_dict_adapter.py\", line 140, in from_hf\n    assert "
       "\"model.embed_tokens.weight\" in hf_state_dict\nAssertionError\n",
       "tied-name-missing materialize model.embed_tokens.weight"},
      {"torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
       "29500, code: -98, name: EADDRINUSE, message: address already in use\n",
       "address-in-use materialize "}};
  for (const auto& [log, expected] : cases) {
    EXPECT_THAT(failures_in(log), ElementsAre(expected)) << log;
  }
}

TEST(Recognise, AKeyThatNothingSaysIsTiedIsANameThatWasNotFound) {
  EXPECT_THAT(failures_in("KeyError: 'model.layers.3.self_attn.q_proj.weight'\n"),
              ElementsAre("name-not-found shard model.layers.3.self_attn.q_proj.weight"));
  const std::string in = "Traceback (most recent call last):\n  File \"";
  EXPECT_THAT(failures_in(in + "/x/data.py\", line 3, in main\n    s[k]\nKeyError: 'sample.weight'\n"),
              ElementsAre("name-not-found step sample.weight"));
  EXPECT_THAT(failures_in(in + "/fsdp/_optim_utils.py\", line 3, in _flatten_optim_state\n    s[k]\nKeyError: "
                               "'model.layers.0.q_proj.lora_A.default.weight'\n"),
              ElementsAre("optimizer-state-missing optimizer model.layers.0.q_proj.lora_A.default.weight"));
}

TEST(Recognise, AKillIsNamedAndComesAfterWhatItMayFollowFrom) {
  const std::string ended =
      "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\nRoot Cause:\n  exitcode  : -9 (pid: "
      "1)\n";
  EXPECT_THAT(failures_in(ended), ElementsAre("process-killed step "));
  std::istringstream text(ended);
  const LogFacts facts = read_log(text);
  EXPECT_EQ(recognise(facts).failures.at(0).exception->message, "exitcode  : -9 (pid: 1)");
  EXPECT_EQ(facts.exceptions.at(0).message, "Root Cause: exitcode  : -9 (pid: 1)");
  EXPECT_THAT(failures_in(ended + "\nKeyError: 'lm_head.weight'\n"),
              ElementsAre("tied-name-missing shard lm_head.weight", "process-killed step "));
  EXPECT_THAT(failures_in("[rank1]:[E901 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation "
                          "timeout: WorkNCCL(SeqNum=1)\n"),
              ElementsAre("peer-lost step "));
}

TEST(Recognise, WhatOnlyLooksAlikeIsNotTaken) {
  for (const char* log :
       {"KeyError: 'labels'\n",
        "KeyError: 'lm_head weight is not here'\n",
        "KeyError: 94450793335424\n",
        "ValueError: shared weights are fine\n",
        "we print KeyError: 'lm_head.weight' here\n",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu\n",
        "FileNotFoundError: [Errno 2] No such file or directory: 'tokens.bin'\n",
        "step 3 loss 2.0\n"}) {
    EXPECT_THAT(failures_in(log), IsEmpty()) << log;
  }
}

TEST(Recognise, RanksThatSayTheSameAreOneFailureAndFollowersComeLast) {
  std::istringstream log(
      "[rank1]: torch.distributed.DistBackendError: Connection closed by peer\n"
      "[rank0]: KeyError: 'lm_head.weight'\n"
      "[rank2]: KeyError: 'lm_head.weight'\n");
  const LogFacts facts = read_log(log);
  const LogDiagnosis diagnosis = recognise(facts);
  ASSERT_EQ(diagnosis.failures.size(), 2U);
  EXPECT_THAT(diagnosis.failures[0].ranks, ElementsAre(0, 2));
  EXPECT_STREQ(diagnosis.failures[1].failure->id, "peer-lost");
  EXPECT_EQ(diagnosis.unknown, nullptr);
}

TEST(Recognise, AnUnknownExceptionIsNamedAlsoBesideRanksThatFollowed) {
  std::istringstream log(
      "Traceback (most recent call last):\n  File \"/x/collate.py\", line 3, in collate\n    raise\nRuntimeError: bad "
      "batch\n"
      "ChildFailedError: \n");
  const LogFacts facts = read_log(log);
  const LogDiagnosis diagnosis = recognise(facts);
  ASSERT_NE(diagnosis.unknown, nullptr);
  const Diagnostic note = unknown_finding(facts, diagnosis);
  EXPECT_EQ(note.level, Level::kNote);
  EXPECT_THAT(note.why, HasSubstr("RuntimeError: bad batch (collate.py, collate)"));
}

TEST(Recognise, EveryFailureSaysAllThatAUserNeeds) {
  std::set<std::string> ids;
  for (const Failure& failure : known_failures()) {
    EXPECT_TRUE(ids.insert(failure.id).second) << failure.id;
    EXPECT_FALSE(failure.steps.empty()) << failure.id;
    for (const char* text : {failure.what, failure.cause, failure.fix_there, failure.fix_here}) {
      EXPECT_GT(std::string(text).size(), 20U) << failure.id;
    }
  }
  EXPECT_EQ(ids.size(), 26U);
}

TEST(Checklist, WithoutACheckpointItsStepsNeedTheReader) {
  std::istringstream log("KeyError: 'lm_head.weight'\n");
  const LogFacts facts = read_log(log);
  const LogDiagnosis diagnosis = recognise(facts);
  std::string states;
  for (const WalkedStep& step : walk(diagnosis.failures.at(0), std::nullopt)) {
    states += concat(id(step.state), ", ");
  }
  EXPECT_EQ(states, "needs you, found, needs you, needs you, needs you, needs you, needs you, ");
}

TEST(Checklist, ACheckpointAnswersWhatItCan) {
  std::istringstream log("KeyError: 'lm_head.weight'\n");
  const LogFacts facts = read_log(log);
  const LogDiagnosis diagnosis = recognise(facts);
  DoctorReport report;
  report.ties = {{.canonical = "model.embed_tokens.weight",
                  .aliases = {{.name = "lm_head.weight",
                               .reasons = {{.evidence = TieEvidence::kConfigFlag, .text = "the flag"}}}}}};
  report.findings = {{.level = Level::kWarning, .code = Code::kTieConflict, .what = "two", .why = "different values"}};
  const auto steps =
      walk(diagnosis.failures.at(0), LookedAt{.report = report, .stored = {"model.embed_tokens.weight"}});
  EXPECT_EQ(steps[0].state, StepState::kFound);
  EXPECT_THAT(steps[0].detail, HasSubstr("the flag"));
  EXPECT_EQ(steps[2].detail, "model.embed_tokens.weight is stored, lm_head.weight is not stored");
  EXPECT_THAT(steps[3].detail, HasSubstr("different values"));
  report.findings.clear();
  const auto without = walk(diagnosis.failures.at(0),
                            LookedAt{.report = report, .stored = {"model.embed_tokens.weight", "lm_head.weight"}});
  EXPECT_EQ(without[3].state, StepState::kChecked);
}

TEST(Checklist, ACheckpointSaysThatANameIsNotTied) {
  std::istringstream log("KeyError: 'lm_head.weight'\n");
  const LogFacts facts = read_log(log);
  LogDiagnosis diagnosis = recognise(facts);
  DoctorReport report;
  correct_by(report, diagnosis);
  EXPECT_STREQ(diagnosis.failures.at(0).failure->id, kNameNotFound);
}

TEST(Checklist, ATieThatTheFilesBreakIsFoundAndNotChecked) {
  std::istringstream log("KeyError: 'lm_head.weight'\n");
  const LogFacts facts = read_log(log);
  LogDiagnosis diagnosis = recognise(facts);
  DoctorReport report;
  report.findings = {{.level = Level::kError,
                      .code = Code::kTieShapeMismatch,
                      .what = "two shapes",
                      .where = "model.safetensors, model.embed_tokens.weight and lm_head.weight",
                      .why = "expected one shape"}};
  correct_by(report, diagnosis);
  ASSERT_STREQ(diagnosis.failures.at(0).failure->id, "tied-name-missing");
  const auto steps = walk(diagnosis.failures.at(0), LookedAt{.report = report, .stored = {"lm_head.weight"}});
  EXPECT_EQ(steps[0].state, StepState::kFound);
  EXPECT_THAT(steps[0].detail, HasSubstr("tie-shape-mismatch"));
}

} // namespace
} // namespace tieshard
