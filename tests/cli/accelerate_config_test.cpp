#include "tieshard/cli/accelerate_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/session.h"
#include "tests/core/base/temp_dir.h"
#include "tests/support/raised.h"

namespace tieshard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::raised;

constexpr const char* kSecond =
    "distributed_type: FSDP\n"
    "num_processes: 2\n"
    "fsdp_config:\n"
    "  fsdp_version: 2\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
    "  fsdp_state_dict_type: SHARDED_STATE_DICT\n";

class AccelerateConfigTest : public ::testing::Test {
 protected:
  AccelerateConfigTest() : model_(testing::tied_config()) {
    model_.write(testing::tiny_llama_tensors());
  }

  /// "level where: why" of each finding for `text` beside the tied tiny Llama.
  std::string said(const std::string& text, bool with_model = true) {
    const AccelerateConfig config = read_accelerate_config(dir_.write("fsdp.yaml", text));
    const ResolvedModel model = resolve_model(model_.path());
    std::string all;
    for (const Diagnostic& finding : check_accelerate_config(config, with_model ? &model : nullptr)) {
      EXPECT_EQ(finding.code, Code::kAccelerateConfig);
      all += concat(finding.level == Level::kError     ? "error "
                    : finding.level == Level::kWarning ? "warning "
                                                       : "note ",
                    finding.where.substr(finding.where.find(", ") + 2),
                    ": ",
                    finding.why,
                    "\n");
    }
    return all;
  }

  TempDir dir_;
  testing::CheckpointFixture model_;
};

TEST_F(AccelerateConfigTest, OneThatSuitsTheModelHasNothingToSay) {
  EXPECT_THAT(said(kSecond), IsEmpty());
}

TEST_F(AccelerateConfigTest, FieldsOfTheFirstVersionHaveNoEffectInTheSecond) {
  const std::string all = said(concat(kSecond, "  fsdp_use_orig_params: true\n  fsdp_sync_module_states: true\n"));
  EXPECT_THAT(all, HasSubstr("note fsdp_config.fsdp_use_orig_params: "));
  EXPECT_THAT(all, HasSubstr("note fsdp_config.fsdp_sync_module_states: "));
}

TEST_F(AccelerateConfigTest, TheFirstVersionIsWarnedOfForATiedModel) {
  const std::string one =
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n  fsdp_sync_module_states: "
      "false\n";
  EXPECT_THAT(said(one), HasSubstr("warning fsdp_config.fsdp_version: expected 2 for a tied model, got nothing"));
  EXPECT_THAT(said(one), HasSubstr("error fsdp_config.fsdp_sync_module_states: "));
  EXPECT_THAT(said(one, false), ::testing::Not(HasSubstr("fsdp_version")));
}

TEST_F(AccelerateConfigTest, AWrapThatPartsATieIsAnError) {
  std::string text = kSecond;
  text.replace(text.find("LlamaDecoderLayer"), 17, "LlamaDecoderLayer,Embedding");
  EXPECT_THAT(said(text), HasSubstr("error fsdp_config.fsdp_transformer_layer_cls_to_wrap: "));
  EXPECT_THAT(said(text), HasSubstr("lm_head.weight = model.embed_tokens.weight"));
  text = kSecond;
  text.replace(text.find("TRANSFORMER_BASED_WRAP"), 22, "SIZE_BASED_WRAP");
  EXPECT_THAT(said(text), HasSubstr("error fsdp_config.fsdp_auto_wrap_policy: "));
  text = kSecond;
  text.replace(text.find("LlamaDecoderLayer"), 17, "GPT2Block");
  EXPECT_THAT(said(text),
              HasSubstr("warning fsdp_config.fsdp_transformer_layer_cls_to_wrap: expected the layer of "
                        "LlamaForCausalLM, LlamaDecoderLayer"));
}

TEST_F(AccelerateConfigTest, LoadingOfATiedModelFromMetaIsWarnedOfAndOfTwoWeightsAnError) {
  const std::string text = concat(kSecond, "  fsdp_cpu_ram_efficient_loading: true\n");
  EXPECT_THAT(said(text), HasSubstr("warning fsdp_config.fsdp_cpu_ram_efficient_loading: "));
  std::vector<testing::FixtureTensor> tensors = testing::tiny_llama_tensors();
  for (const testing::FixtureTensor& tensor : testing::tiny_llama_tensors()) {
    if (tensor.name == "model.embed_tokens.weight") {
      tensors.push_back(testing::counting("lm_head.weight", tensor.shape, 50));
    }
  }
  model_.write(tensors);
  EXPECT_THAT(said(text), HasSubstr("error fsdp_config.fsdp_cpu_ram_efficient_loading: expected one weight, got two"));
}

TEST_F(AccelerateConfigTest, RanksThatDoNotDivideATiedVocabularyAreWarnedOf) {
  std::string text = kSecond;
  text.replace(text.find("num_processes: 2"), 16, "num_processes: 4"); // of 6 rows
  EXPECT_THAT(said(text),
              HasSubstr("warning num_processes: expected a vocabulary that the ranks divide, got 6 rows on 4 ranks"));
}

TEST_F(AccelerateConfigTest, ValuesThatAccelerateRefusesAreErrors) {
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{
           {"fsdp_auto_wrap_policy", "SIZED"},
           {"fsdp_state_dict_type", "BOGUS"},
           {"fsdp_state_dict_type", "LOCAL_STATE_DICT"},
           {"fsdp_version", "two"},
           {"fsdp_version", "3"},
           {"fsdp_cpu_ram_efficient_loading", "maybe"},
           {"fsdp_reshard_after_forward", "FULL_SHARD"},
           {"fsdp_min_num_params", "many"},
           {"fsdp_transformer_layer_cls_to_wrap", "\"\""},
           {"fsdp_transformer_layer_cls_to_wrap", "[LlamaDecoderLayer, Embedding]"}}) {
    std::string text = kSecond;
    if (const std::size_t at = text.find(concat("  ", field)); at != std::string::npos) {
      text.erase(at, text.find('\n', at) + 1 - at);
    }
    EXPECT_THAT(said(concat(text, "  ", field, ": ", value, "\n"), false),
                HasSubstr(concat("error fsdp_config.", field, ": expected ")))
        << value;
  }
  for (const char* number : {"-3", "0", "some"}) {
    std::string text = kSecond;
    text.replace(text.find("num_processes: 2"), 16, concat("num_processes: ", number));
    EXPECT_THAT(said(text), HasSubstr("error num_processes: expected a number of processes")) << number;
  }
}

TEST_F(AccelerateConfigTest, AListOfClassesIsLookedAtToo) {
  std::string text = kSecond;
  text.replace(text.find("LlamaDecoderLayer"), 17, "[LlamaDecoderLayer, Embedding]");
  EXPECT_THAT(said(text), HasSubstr("got Embedding, which puts lm_head.weight = model.embed_tokens.weight into two"));
}

TEST_F(AccelerateConfigTest, AVersionThatIsNoneIsNotTakenForTheFirst) {
  std::string text = kSecond;
  text.replace(text.find("fsdp_version: 2"), 15, "fsdp_version: 3");
  EXPECT_THAT(said(text), ::testing::Not(HasSubstr("FSDP1 flattens")));
}

TEST_F(AccelerateConfigTest, FieldsThatAccelerateDoesNotKnowAreNamed) {
  const std::string all = said(concat(kSecond, "  fsdp_atuo_wrap: x\nfsdp_offload_params: true\nbogus: 1\n"));
  EXPECT_THAT(all, HasSubstr("warning fsdp_config.fsdp_atuo_wrap: "));
  EXPECT_THAT(all, HasSubstr("error fsdp_offload_params: "));
  EXPECT_THAT(all, HasSubstr("outside of fsdp_config"));
  EXPECT_THAT(all, HasSubstr("error bogus: "));
}

TEST_F(AccelerateConfigTest, WithoutACheckpointItIsSaidWhatWasNotLookedAt) {
  EXPECT_THAT(said(kSecond, false), HasSubstr("note fsdp_config: expected a checkpoint beside it, got none"));
}

TEST_F(AccelerateConfigTest, WhatAccelerateItselfWritesIsTaken) {
  EXPECT_THAT(said("compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: FSDP\ndowncast_bf16: 'no'\n"
                   "enable_cpu_affinity: false\nfsdp_config:\n  fsdp_activation_checkpointing: false\n"
                   "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_cpu_ram_efficient_loading: false\n"
                   "  fsdp_offload_params: false\n  fsdp_reshard_after_forward: true\n"
                   "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
                   "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n  fsdp_version: 2\nmachine_rank: 0\n"
                   "main_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 2\n"
                   "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\n"
                   "tpu_use_sudo: false\nuse_cpu: false\n"),
              IsEmpty());
}

TEST_F(AccelerateConfigTest, FailOnIsHonouredAndFlagsOfOtherDiagnosesAreRefused) {
  const std::string path = dir_.write("fsdp.yaml", concat(kSecond, "  fsdp_bogus: 1\n")).string();
  EXPECT_EQ(testing::run({"doctor", model_.path(), "--accelerate-config", path}).status, 0);
  EXPECT_EQ(testing::run({"doctor", model_.path(), "--accelerate-config", path, "--fail-on", "warning"}).status, 2);
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--try"}, {"--html", "-"}}) {
    std::vector<std::string> words{"doctor", model_.path(), "--accelerate-config", path};
    words.insert(words.end(), flags.begin(), flags.end());
    const testing::Answer answer = testing::run(words);
    EXPECT_EQ(answer.status, 2);
    EXPECT_THAT(answer.err, HasSubstr("[bad-flag]"));
  }
}

TEST_F(AccelerateConfigTest, AnotherKindOfTrainingAsksForNothing) {
  EXPECT_THAT(said("distributed_type: MULTI_GPU\n"), HasSubstr("note distributed_type: expected FSDP, got multi_gpu"));
}

TEST_F(AccelerateConfigTest, WhatIsNoYamlIsRefusedWithItsLine) {
  for (const char* text : {"a: [1, 2\n",
                           "- a\n- b\n",
                           "a: 1\na: 2\n",
                           "just text\n",
                           "",
                           "a: {b: 1, b: 2}\n? [x]\n: 1\n",
                           "fsdp_config: [1]\n"}) {
    const auto refused = raised([&] { read_accelerate_config(dir_.write("bad.yaml", text)); });
    ASSERT_TRUE(refused) << text;
    EXPECT_EQ(refused->code, Code::kYamlMalformed) << text;
    EXPECT_THAT(refused->where, HasSubstr("bad.yaml"));
  }
  EXPECT_EQ(raised([&] { read_accelerate_config(dir_ / "none"); })->code, Code::kFileNotFound);
}

TEST_F(AccelerateConfigTest, IsAFlagOfDoctor) {
  const std::string path =
      dir_.write("fsdp.yaml", concat(kSecond, "  fsdp_state_dict_type_: x\n  fsdp_use_orig_params: true\n")).string();
  const testing::Answer answer = testing::run({"doctor", model_.path(), "--accelerate-config", path});
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.out, HasSubstr("[accelerate-config]"));
  EXPECT_EQ(testing::run({"doctor"}).status, 2);
}

} // namespace
} // namespace tieshard::cli
