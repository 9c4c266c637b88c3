// accelerate #3870: KeyError lm_head.weight when a tied model is sharded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/plan/read_plan.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

at::Tensor parameter_of(const torch::nn::Module& module, const std::string& fqn) {
  for (const NamedTensor& named : named_parameters(module)) {
    if (named.fqn == fqn) {
      return named.tensor;
    }
  }
  return {};
}

struct Case {
  const char* name;
  TinyLlama model;
  bool shared; ///< the head is the embedding
};

class Issue3870 : public ::testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(Issue3870, IsPlannedLoadedShardedSteppedAndExportedWithoutAMissingName) {
  const auto& [test, ranks] = GetParam();
  const auto directory = write_tiny_llama("model", test.model);
  const auto out = fresh_directory("out") / "export";
  on_ranks(ranks, [&, test = test](const DeviceMesh& mesh) {
    ParallelModel parallel = parallelize(directory, mesh, exact_options());
    const auto expect_tie = [&](const char* stage) {
      EXPECT_EQ(parameter_of(*parallel.model, kEmbed).is_same(parameter_of(*parallel.model, kHead)), test.shared)
          << stage;
      EXPECT_NO_THROW(validate_shared_object(*parallel.model, parallel.ties)) << stage;
    };
    expect_tie("after load and fully_shard");
    EXPECT_EQ(parallel.ties.canonical(kHead), test.shared ? kEmbed : kHead);
    ASSERT_NE(parallel.plan.find(kHead), nullptr); // whatever its name, it can be looked up
    EXPECT_EQ(parallel.plan.find(kHead) == parallel.plan.find(kEmbed), test.shared);
    const TrainResult result = train_steps(parallel, mesh, make_batch(4, 9, test.model.vocab), 2);
    expect_tie("after two steps");
    EXPECT_LT(result.losses[1], result.losses[0]);
    EXPECT_EQ(result.gradients.size(), parallel.plan.parameters().size());
    const ExportReport report = export_hf(*parallel.state, parallel.checkpoint, out);
    EXPECT_EQ(report.left_out, parallel.ties.aliases(kEmbed));
    const ParallelModel again = parallelize(out, mesh, exact_options());
    EXPECT_EQ(parameter_of(*again.model, kEmbed).is_same(parameter_of(*again.model, kHead)), test.shared);
    for (const NamedTensor& named : sharded_state_dict(*again.state)) {
      EXPECT_TRUE(at::equal(named.tensor, parameter_of(*parallel.model, named.fqn))) << named.fqn;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints,
    Issue3870,
    ::testing::Combine(
        ::testing::Values(Case{"TiedHeadAbsent", {.tied = true, .head = StoredHead::kAbsent}, true},
                          Case{"TiedHeadEqual", {.tied = true, .head = StoredHead::kEqual}, true},
                          Case{"TiedHeadAlone", {.tied = true, .head = StoredHead::kAlone}, true},
                          Case{"Untied", {.tied = false, .head = StoredHead::kDifferent}, false},
                          Case{"TiedButDifferent", {.tied = true, .head = StoredHead::kDifferent}, false}),
        ::testing::Values(2, 3)),
    [](const auto& info) { return concat(std::get<0>(info.param).name, "_", std::get<1>(info.param), "ranks"); });

TEST(Issue3870, TheUntiedModelIsUntouched) {
  const auto directory = write_tiny_llama("model", {.tied = false, .head = StoredHead::kDifferent});
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const TieRegistry ties = TieRegistry::of(checkpoint, require_family(checkpoint.config()).table(checkpoint.config()));
  EXPECT_TRUE(ties.groups().empty());
  const std::vector<std::string> names{kHead, kEmbed, "model.norm.weight"};
  EXPECT_EQ(ties.expand(names), names);
  EXPECT_EQ(ties.seen_params(names), names);
  EXPECT_TRUE(ties.findings().empty());
}

TEST(Issue3870, TwoWeightsUnderATieFlagAreLoadedAsTwoAndThatIsSaid) {
  const auto directory = write_tiny_llama("model", {.tied = true, .head = StoredHead::kDifferent});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const ParallelModel parallel = parallelize(directory, mesh, exact_options());
    EXPECT_FALSE(at::equal(parameter_of(*parallel.model, kHead), parameter_of(*parallel.model, kEmbed)));
    ASSERT_FALSE(parallel.findings.empty());
    EXPECT_EQ(parallel.findings.front().code, Code::kTieConflict);
    EXPECT_EQ(parallel.findings.front().level, Level::kWarning);
    EXPECT_THAT(parallel.findings.front().to_string(),
                ::testing::AllOf(::testing::HasSubstr(kHead), ::testing::HasSubstr(kEmbed)));
  });
}

TEST(Issue3870, AnUntiedModelWithoutItsHeadIsRefusedByName) {
  const auto directory = write_tiny_llama("model", {.tied = false, .head = StoredHead::kAbsent});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    if (mesh.rank() == 0) {
      const Checkpoint checkpoint = Checkpoint::open(directory);
      const ParameterTable table = require_family(checkpoint.config()).table(checkpoint.config());
      const ShardPlan plan = ShardPlan::build(table, TieRegistry::of(checkpoint, table), 2);
      expect_refusal(
          [&] { build_read_plan(checkpoint, plan, 0); }, Code::kMissingParameter, {kHead, "tie_word_embeddings"});
    }
    expect_refusal([&] { parallelize(directory, mesh, exact_options()); },
                   mesh.rank() == 0 ? Code::kMissingParameter : Code::kPeerFailed,
                   {mesh.rank() == 0 ? kHead : "missing-parameter"});
  });
}

TEST(Issue3870, OneToFourRanksGiveTheLossesOfOne) {
  // vocab 37 and hidden 12: not divisible by 4 or 3, resp. 5; three rows over up to four ranks: unequal targets, and
  // none on one
  const auto directory = write_tiny_llama("model", {});
  const auto file = fresh_directory("losses") / "one";
  const auto run = [&](const DeviceMesh& mesh) {
    ParallelModel parallel = parallelize(directory, mesh, exact_options());
    return train_steps(parallel, mesh, make_batch(3, 9, 37), 3).losses;
  };
  on_ranks(1, [&](const DeviceMesh& mesh) {
    std::ofstream text(file);
    text.precision(17);
    for (const double loss : run(mesh)) {
      text << loss << "\n";
    }
  });
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](const DeviceMesh& mesh) {
      std::ifstream text(file);
      for (const double loss : run(mesh)) {
        double expected = 0;
        ASSERT_TRUE(text >> expected);
        EXPECT_NEAR(loss, expected, 1e-6) << mesh.where();
      }
    });
  }
}

} // namespace
} // namespace tieshard::testing
