#include "tieshard/runtime/load/shard_loader.h"

#include <atomic>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

/// This rank's part of the values that write_tiny_llama gave `parameter`, cut from the whole by torch.
at::Tensor expected_shard(const ShardPlan& plan, const ShardedParameter& parameter, std::int64_t rank, float scale) {
  std::vector<float> values = random_values(parameter.fqn, static_cast<std::size_t>(numel(parameter.shape)), scale);
  const bool norm = parameter.fqn.find("norm") != std::string::npos;
  const at::Tensor whole = at::tensor(values).view(parameter.shape) + (norm ? 1.0F : 0.0F);
  const std::vector<at::Tensor> chunks = whole.chunk(plan.ranks(), parameter.dim);
  if (rank < static_cast<std::int64_t>(chunks.size())) {
    return chunks[static_cast<std::size_t>(rank)];
  }
  return whole.narrow(parameter.dim, 0, 0);
}

float scale_of(const std::string& fqn, std::int64_t hidden) {
  if (fqn.find("norm") != std::string::npos) {
    return 0.2F;
  }
  return fqn == kEmbed || fqn == kHead ? 0.5F : 1.0F / std::sqrt(static_cast<float>(hidden));
}

class LoadShards : public ::testing::TestWithParam<int> {};

TEST_P(LoadShards, GivesEachRankItsChunkOfWhatTheFileHoldsForEveryPolicyAndDtype) {
  const TinyLlama sizes{.hidden = 5, .intermediate = 1, .heads = 1, .head_dim = 4}; // uneven, and empty on four ranks
  const auto directory = write_tiny_llama("model", sizes);
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    for (const ShardDimPolicy policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const PlannedLlama loaded = load_llama(directory, mesh, policy, dtype);
        for (const NamedTensor& named : unique_parameters(*loaded.model)) {
          const ShardedParameter& parameter = *loaded.plan.find(named.fqn);
          const at::Tensor expected =
              expected_shard(loaded.plan, parameter, mesh.rank(), scale_of(named.fqn, sizes.hidden)).to(dtype);
          EXPECT_EQ(named.tensor.scalar_type(), dtype) << named.fqn;
          EXPECT_TRUE(at::equal(named.tensor.detach(), expected)) << named.fqn << " on " << mesh.where();
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LoadShards, ::testing::Values(1, 2, 3, 4), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

TEST(LoadShardsLedger, TracesEveryElementToAFileAndAnOffset) {
  const auto directory = write_tiny_llama("model", {.head = StoredHead::kAlone}); // the tied weight under its alias
  on_ranks(3, [&](const DeviceMesh& mesh) {
    PlannedLlama planned = plan_llama(directory, mesh);
    std::uint64_t finished = 0;
    std::uint64_t expected = 0;
    const LoadLedger ledger = load_shards(*planned.model,
                                          planned.checkpoint,
                                          planned.plan,
                                          mesh,
                                          {.threads = 2, .on_progress = [&](std::uint64_t done, std::uint64_t total) {
                                             finished = done;
                                             expected = total;
                                           }});
    ASSERT_EQ(ledger.entries.size(), planned.plan.parameters().size());
    for (std::size_t index = 0; index < ledger.entries.size(); ++index) {
      const LedgerEntry& entry = ledger.entries[index];
      const ShardedParameter& parameter = planned.plan.parameters()[index];
      EXPECT_EQ(entry.fqn, parameter.fqn);
      EXPECT_EQ(entry.stored_name, entry.fqn == kEmbed ? kHead : entry.fqn);
      const StoredTensor* stored = planned.checkpoint.find(entry.stored_name);
      ASSERT_NE(stored, nullptr) << entry.fqn;
      EXPECT_EQ(entry.file, "model.safetensors");
      EXPECT_EQ(entry.offset, stored->offset);
      EXPECT_EQ(entry.elements, numel(planned.plan.local_shape(parameter, mesh.rank()))) << entry.fqn;
      EXPECT_EQ(entry.whole_elements, numel(parameter.shape));
      EXPECT_EQ(entry.materialized, 1);
    }
    EXPECT_EQ(ledger.elements(), planned.plan.local_numel(mesh.rank()));
    EXPECT_GE(ledger.bytes_read, static_cast<std::uint64_t>(ledger.elements()) * 4);
    EXPECT_EQ(finished, expected); // the last report is the whole
    EXPECT_EQ(expected, static_cast<std::uint64_t>(ledger.elements()) * 4);
    EXPECT_EQ(ledger.find(kHead)->aliases, std::vector<std::string>{kHead});
    EXPECT_TRUE(ledger.unused.empty());
    EXPECT_GE(ledger.seconds, 0.0);
  });
}

TEST(LoadShardsLedger, ListsWhatNoParameterUses) {
  CheckpointFixture fixture(tiny_llama_config("\"tie_word_embeddings\": true,"));
  const Checkpoint config_only = fixture.write({counting("old.inv_freq", {2})}).open();
  std::vector<FixtureTensor> tensors{counting("old.inv_freq", {2})};
  for (const ParameterInfo& info : require_family(config_only.config()).table(config_only.config())) {
    if (info.fqn != kHead) {
      tensors.push_back(counting(info.fqn, info.shape));
    }
  }
  fixture.write(tensors);
  on_ranks(2, [&](const DeviceMesh& mesh) {
    PlannedLlama planned = plan_llama(fixture.path(), mesh);
    const LoadLedger ledger = load_shards(*planned.model, planned.checkpoint, planned.plan, mesh);
    EXPECT_EQ(ledger.unused, std::vector<std::string>{"old.inv_freq"});
    ASSERT_EQ(ledger.findings.size(), 1U);
    EXPECT_EQ(ledger.findings.front().code, Code::kUnusedTensor);
  });
}

TEST(LoadShardsNames, RefuseAPlanOfAnotherModule) {
  const auto small = write_tiny_llama("small", {.layers = 1});
  const auto large = write_tiny_llama("large", {.layers = 2});
  on_ranks(1, [&](const DeviceMesh& mesh) {
    PlannedLlama one = plan_llama(small, mesh);
    PlannedLlama two = plan_llama(large, mesh);
    expect_refusal([&] { load_shards(*one.model, one.checkpoint, two.plan, mesh); },
                   Code::kUnknownParameter,
                   {"plan has a parameter that the module does not", "model.layers.1."});
    expect_refusal([&] { load_shards(*two.model, two.checkpoint, one.plan, mesh); },
                   Code::kUnknownParameter,
                   {"module has a parameter that the plan does not", "model.layers.1."});
    for (const NamedTensor& named : named_parameters(*one.model)) {
      EXPECT_TRUE(named.tensor.is_meta()) << named.fqn;
    }
  });
}

} // namespace
} // namespace tieshard::testing
