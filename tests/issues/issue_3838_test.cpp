// accelerate #3838: GPT-OSS fails to load under FSDP2. KeyError, shape mismatch, "already materialized by tie", tensors
// left on meta at the first forward.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/load/materialize.h"
#include "tieshard/runtime/models/make_model.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/tied_module.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

/// What is there before anything is loaded.
struct Planned {
  Checkpoint checkpoint;
  TieRegistry ties;
  std::shared_ptr<LanguageModel> model;
  ShardPlan plan;
};

Planned plan_on_meta(const std::filesystem::path& directory, const DeviceMesh& mesh) {
  Checkpoint checkpoint = Checkpoint::open(directory);
  const Family& family = require_family(checkpoint.config());
  TieRegistry ties = TieRegistry::of(checkpoint, family.table(checkpoint.config()));
  auto model = make_model(checkpoint.config(), ties);
  ShardPlan plan =
      ShardPlan::build(parameter_table(*model), ties, mesh.size(), {.units = family.units(checkpoint.config())});
  return {std::move(checkpoint), std::move(ties), std::move(model), std::move(plan)};
}

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const NamedTensor& named : named_parameters(module)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  return tensors;
}

class Issue3838 : public ::testing::TestWithParam<StoredHead> {};

TEST_P(Issue3838, ATiedMetaModelLoadedThroughBothNamesIsMaterializedOnce) {
  const auto directory = write_tiny_llama("model", {.head = GetParam()});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Planned planned = plan_on_meta(directory, mesh);
    const auto before = tensors_of(*planned.model);
    ASSERT_TRUE(before.at(kEmbed).is_meta());
    const LoadLedger ledger = load_shards(*planned.model, planned.checkpoint, planned.plan, mesh);
    ASSERT_NE(ledger.find(kHead), nullptr);
    EXPECT_EQ(ledger.find(kHead), ledger.find(kEmbed)); // one entry, whichever name is asked
    EXPECT_EQ(ledger.find(kHead)->materialized, 1);
    EXPECT_EQ(ledger.materialized(), static_cast<std::int64_t>(planned.plan.parameters().size()));
    EXPECT_EQ(ledger.elements(), planned.plan.local_numel(mesh.rank()));
    const auto after = tensors_of(*planned.model);
    for (const auto& [fqn, tensor] : before) {
      EXPECT_TRUE(tensor.is_same(after.at(fqn))) << fqn;
    }
    EXPECT_TRUE(after.at(kEmbed).is_same(after.at(kHead)));
  });
}

TEST_P(Issue3838, AfterLoadingNothingIsOnMetaBuffersIncluded) {
  const auto directory = write_tiny_llama("model", {.head = GetParam()});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Planned planned = plan_on_meta(directory, mesh);
    expect_refusal([&] { require_materialized(*planned.model); }, Code::kStillOnMeta, {kEmbed, "model.norm.weight"});
    load_shards(*planned.model, planned.checkpoint, planned.plan, mesh);
    EXPECT_NO_THROW(require_materialized(*planned.model));
    ASSERT_FALSE(planned.model->named_buffers().is_empty()); // the rotary frequencies
    for (const auto& buffer : planned.model->named_buffers()) {
      EXPECT_TRUE(buffer.value().isfinite().all().item<bool>()) << buffer.key();
    }
  });
}

TEST_P(Issue3838, LoadingTwiceMakesNoSecondTensorAndTheLedgerSaysSo) {
  const auto directory = write_tiny_llama("model", {.head = GetParam()});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Planned planned = plan_on_meta(directory, mesh);
    load_shards(*planned.model, planned.checkpoint, planned.plan, mesh);
    const auto first = tensors_of(*planned.model);
    std::map<std::string, const void*> bytes;
    for (const auto& [fqn, tensor] : first) {
      bytes[fqn] = tensor.const_data_ptr();
    }
    const LoadLedger again = load_shards(*planned.model, planned.checkpoint, planned.plan, mesh);
    EXPECT_EQ(again.materialized(), 0);
    EXPECT_EQ(again.already_materialized(), static_cast<std::int64_t>(planned.plan.parameters().size()));
    EXPECT_EQ(again.bytes_read, 0U);
    for (const auto& [fqn, tensor] : tensors_of(*planned.model)) {
      EXPECT_TRUE(tensor.is_same(first.at(fqn))) << fqn;
      EXPECT_EQ(tensor.const_data_ptr(), bytes.at(fqn)) << fqn;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(StoredNames,
                         Issue3838,
                         ::testing::Values(StoredHead::kAbsent, StoredHead::kEqual, StoredHead::kAlone),
                         [](const auto& info) {
                           return info.param == StoredHead::kAbsent  ? "EmbeddingOnly"
                                  : info.param == StoredHead::kEqual ? "BothNames"
                                                                     : "HeadOnly";
                         });

TEST(Issue3838, MaterializingByTheOtherNameIsTheSameTensorAndNotASecondTime) {
  on_ranks(1, [](const DeviceMesh&) {
    const HfConfig config = HfConfig::parse(
        R"({"model_type": "llama", "vocab_size": 7, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
            "num_attention_heads": 1, "tie_word_embeddings": true})",
        "config.json");
    const ParameterTable table = require_family(config).table(config);
    const auto model = make_model(config, TieRegistry::from_map({{kHead, kEmbed}}, table));
    const auto tensors = tensors_of(*model);
    EXPECT_TRUE(materialize(tensors.at(kEmbed), at::empty({7, 2}, at::kFloat)));
    EXPECT_FALSE(tensors.at(kHead).is_meta()); // the other name sees it: it is the same object
    const void* bytes = tensors.at(kHead).const_data_ptr();
    EXPECT_FALSE(materialize(tensors.at(kHead), at::empty({7, 2}, at::kFloat)));
    EXPECT_FALSE(materialize(tensors.at(kEmbed), at::empty({7, 2}, at::kFloat)));
    EXPECT_EQ(tensors.at(kEmbed).const_data_ptr(), bytes);
    EXPECT_TRUE(tensors.at(kEmbed).requires_grad());
    EXPECT_TRUE(tensors.at(kEmbed).is_leaf());
  });
}

TEST(Issue3838, TransposedHeadIsRefusedWithBothShapesNamed) {
  const auto directory = write_tiny_llama("model", {.head = StoredHead::kTransposed});
  const Checkpoint checkpoint = Checkpoint::open(directory);
  expect_refusal([&] { TieRegistry::of(checkpoint, require_family(checkpoint.config()).table(checkpoint.config())); },
                 Code::kTieShapeMismatch,
                 {kEmbed, kHead, "[37, 12]", "[12, 37]"});
}

TEST(Issue3838, TheVocabDimensionOfATiedWeightIsRefusedByEitherName) {
  const auto directory = write_tiny_llama("model", {});
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const ParameterTable table = require_family(checkpoint.config()).table(checkpoint.config());
  const TieRegistry ties = TieRegistry::of(checkpoint, table);
  for (const char* fqn : {kEmbed, kHead}) {
    expect_refusal([&] { ShardPlan::build(table, ties, 2, {.dims = {{fqn, 0}}}); }, Code::kTiedWeightOnVocab, {kEmbed});
  }
  for (const ShardDimPolicy policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
    EXPECT_EQ(ShardPlan::build(table, ties, 2, {.policy = policy}).find(kHead)->dim, 1);
  }
}

TEST(Issue3838, TheForwardShapeIsBatchSequenceVocab) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(3, [&](const DeviceMesh& mesh) {
    const ParallelModel parallel = parallelize(directory, mesh, exact_options());
    const at::NoGradGuard no_grad;
    EXPECT_EQ(parallel.model->forward(at::zeros({2, 5}, at::kLong)).sizes().vec(), (Shape{2, 5, 37}));
  });
}

TEST(Issue3838, ShardingBeforeLoadingIsRefusedInsteadOfFailingInTheFirstForward) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    Planned planned = plan_on_meta(directory, mesh);
    expect_refusal(
        [&] { fully_shard(*planned.model, planned.plan, mesh); }, Code::kStillOnMeta, {kEmbed, "load_shards"});
  });
}

TEST(ValidateSharedObject, PassesOneTensorAndRefusesTwoEqualOnes) {
  on_ranks(1, [](const DeviceMesh&) {
    TiedModule tied(11, 4);
    const TieRegistry ties = TieRegistry::of(parameter_table(tied));
    ASSERT_EQ(ties.groups().size(), 1U);
    EXPECT_NO_THROW(validate_shared_object(tied, ties));
    TiedModule loose(11, 4);
    loose.lm_head =
        loose.replace_module("lm_head", std::make_shared<TiedHead>(loose.embed_tokens->weight.detach().clone()));
    ASSERT_TRUE(at::equal(loose.lm_head->weight, loose.embed_tokens->weight));
    expect_refusal([&] { validate_shared_object(loose, ties); },
                   Code::kTieNotShared,
                   {"embed_tokens.weight", "lm_head.weight", "equal values"});
  });
}

TEST(ValidateSharedObject, SeesThatAssigningTheMemberOfALinearIsNoTie) {
  on_ranks(1, [](const DeviceMesh&) {
    torch::nn::Module module;
    auto embed = module.register_module("embed", torch::nn::Embedding(11, 4));
    auto head = module.register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 11).bias(false)));
    head->weight = embed->weight; // LibTorch goes on listing the first weight
    const TieRegistry wanted = TieRegistry::from_map({{"head.weight", "embed.weight"}}, parameter_table(module));
    expect_refusal(
        [&] { validate_shared_object(module, wanted); }, Code::kTieNotShared, {"head.weight", "different values"});
  });
}

} // namespace
} // namespace tieshard::testing
