#include "tieshard/core/plan/read_plan.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/families/known_families.h"

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::raised;
using testing::tiny_llama_config;

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
const std::string kTied = R"("tie_word_embeddings": true,)";
const std::string kUntied = R"("tie_word_embeddings": false,)";

/// Every tensor of the tiny Llama except those in `without`.
std::vector<FixtureTensor> tensors(const std::set<std::string>& without = {}, const std::string& prefix = "") {
  std::vector<FixtureTensor> result;
  for (const ParameterInfo& info : llama_family().table(HfConfig::parse(tiny_llama_config(), "config.json"))) {
    if (!without.contains(info.fqn)) {
      result.push_back(counting(prefix + info.fqn, info.shape));
    }
  }
  return result;
}

ShardPlan plan_for(const Checkpoint& checkpoint, std::int64_t ranks = 2) {
  const ParameterTable table = llama_family().table(checkpoint.config());
  return ShardPlan::build(
      table, TieRegistry::of(checkpoint, table), ranks, {.units = llama_family().units(checkpoint.config())});
}

ReadPlan read_plan(const CheckpointFixture& fixture, std::int64_t rank = 0, std::int64_t ranks = 2) {
  const Checkpoint checkpoint = fixture.open();
  return build_read_plan(checkpoint, plan_for(checkpoint, ranks), rank);
}

std::optional<Diagnostic> refusal(const CheckpointFixture& fixture) {
  return raised<InputError>([&fixture] { read_plan(fixture); });
}

const SliceRead* find(const ReadPlan& plan, const std::string& fqn) {
  const auto found = std::ranges::find(plan.reads, fqn, &SliceRead::fqn);
  return found == plan.reads.end() ? nullptr : &*found;
}

TEST(ReadPlan, ReadsATiedWeightOnceUnderItsOwnName) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  fixture.write(tensors({kHead}));
  const ReadPlan plan = read_plan(fixture);
  EXPECT_EQ(plan.reads.size(), 11U); // 12 names, one tied
  ASSERT_NE(find(plan, kEmbed), nullptr);
  EXPECT_EQ(find(plan, kEmbed)->stored_name, kEmbed);
  EXPECT_EQ(find(plan, kHead), nullptr);
  EXPECT_THAT(plan.unused, IsEmpty());
  EXPECT_THAT(plan.findings, IsEmpty());
}

TEST(ReadPlan, ReadsATiedWeightFromItsAliasWhenOnlyThatIsStored) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  fixture.write(tensors({kEmbed}));
  const ReadPlan plan = read_plan(fixture);
  ASSERT_NE(find(plan, kEmbed), nullptr);
  EXPECT_EQ(find(plan, kEmbed)->stored_name, kHead);
  EXPECT_THAT(plan.unused, IsEmpty());
}

TEST(ReadPlan, ReadsEqualCopiesOnceAndCallsNeitherUnused) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  fixture.write(tensors());
  const ReadPlan plan = read_plan(fixture);
  EXPECT_EQ(plan.reads.size(), 11U);
  EXPECT_THAT(plan.unused, IsEmpty());
}

TEST(ReadPlan, ReadsBothOfAnUntiedPair) {
  CheckpointFixture fixture(tiny_llama_config(kUntied));
  fixture.write(tensors());
  const ReadPlan plan = read_plan(fixture);
  EXPECT_EQ(plan.reads.size(), 12U);
  EXPECT_NE(find(plan, kHead), nullptr);
}

TEST(ReadPlan, ReadsBothOfAPairThatIsTiedByFlagButStoredDifferent) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  auto stored = tensors({kHead});
  stored.push_back(counting(kHead, {6, 4}, 100.0F));
  fixture.write(stored);
  EXPECT_EQ(read_plan(fixture).reads.size(), 12U);
}

TEST(ReadPlan, NamesEachByteOfEveryTensorOnceOverAllRanks) {
  for (std::int64_t ranks = 1; ranks <= 5; ++ranks) {
    CheckpointFixture fixture(tiny_llama_config(kTied));
    fixture.write(tensors({kHead}));
    const Checkpoint checkpoint = fixture.open();
    std::multiset<std::uint64_t> read;
    std::uint64_t bytes = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const ReadPlan plan = build_read_plan(checkpoint, plan_for(checkpoint, ranks), rank);
      bytes += plan.bytes();
      for (const SliceRead& slice : plan.reads) {
        for (std::uint64_t row = 0; row < slice.range.rows; ++row) {
          for (std::uint64_t byte = 0; byte < slice.range.row_bytes; ++byte) {
            read.insert(slice.offset + slice.range.first + row * slice.range.stride + byte);
          }
        }
      }
    }
    std::multiset<std::uint64_t> stored;
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      for (std::uint64_t byte = 0; byte < tensor.bytes; ++byte) {
        stored.insert(tensor.offset + byte);
      }
    }
    EXPECT_EQ(read, stored) << ranks << " ranks";
    EXPECT_EQ(bytes, stored.size());
  }
}

TEST(ReadPlan, GoesThroughTheFilesInOrderAndLeavesEmptySlicesOut) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  const auto all = tensors({kHead});
  fixture.write({all.rbegin(), all.rbegin() + 6}, {}, "model-00001-of-00002.safetensors");
  fixture.write({all.rbegin() + 6, all.rend()}, {}, "model-00002-of-00002.safetensors");
  fixture.write_index();
  const ReadPlan plan = read_plan(fixture, 0, 3);
  EXPECT_TRUE(
      std::ranges::is_sorted(plan.reads, {}, [](const SliceRead& read) { return std::pair(read.file, read.offset); }));
  EXPECT_EQ(plan.reads.back().file, 1U);
  const ReadPlan last = read_plan(fixture, 2, 3); // width 4 on 3 ranks: 2, 2, 0
  EXPECT_EQ(find(last, kEmbed), nullptr);
  EXPECT_NE(find(last, "model.layers.0.mlp.down_proj.weight"), nullptr); // width 8: 3, 3, 2
}

// --- Refusals.

TEST(ReadPlan, RefusesAMissingHeadNamingTheTieAsTheRemedy) {
  CheckpointFixture fixture(tiny_llama_config(kUntied));
  fixture.write(tensors({kHead}));
  const auto refused = refusal(fixture);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kMissingParameter);
  EXPECT_THAT(refused->where, HasSubstr(kHead));
  EXPECT_THAT(refused->fix,
              AllOf(HasSubstr("--tie lm_head.weight=model.embed_tokens.weight"), HasSubstr("tie_word_embeddings")));
}

TEST(ReadPlan, ListsEveryMissingParameterInOneError) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  fixture.write(tensors({kHead, "model.norm.weight", "model.layers.0.mlp.up_proj.weight"}));
  const auto refused = refusal(fixture);
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->where, AllOf(HasSubstr("model.norm.weight"), HasSubstr("model.layers.0.mlp.up_proj.weight")));
  EXPECT_THAT(refused->why, HasSubstr("2 of 11 parameters"));
  EXPECT_THAT(refused->fix, Not(HasSubstr("--tie"))); // up_proj has gate_proj's shape, but is no tie of the family
}

TEST(ReadPlan, CapsALongListOfMissingNames) {
  CheckpointFixture fixture(R"({"tie_word_embeddings": true, "model_type": "llama", "vocab_size": 6, "hidden_size": 4,
    "intermediate_size": 8, "num_hidden_layers": 40, "num_attention_heads": 2})");
  fixture.write(tensors({kHead}));
  const auto refused = refusal(fixture);
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->where, HasSubstr(" and 331 more")); // 39 layers x 9, less the 20 that are named
  EXPECT_LT(refused->where.size(), 2000U);
}

TEST(ReadPlan, RecognisesAUniformForeignPrefix) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  fixture.write(tensors({kHead}, "module."));
  const auto refused = refusal(fixture);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kMissingParameter);
  EXPECT_THAT(refused->fix, HasSubstr("\"module.\""));
}

TEST(ReadPlan, RecognisesAnAbsentPrefix) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  std::vector<FixtureTensor> stored = tensors({kHead});
  for (FixtureTensor& tensor : stored) {
    tensor.name = tensor.name.substr(std::string("model.").size());
  }
  fixture.write(stored);
  const auto refused = refusal(fixture);
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->fix, HasSubstr("lack \"model.\""));
}

TEST(ReadPlan, OffersTheOnlyUnclaimedTensorOfTheShape) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  auto stored = tensors({kHead, "model.norm.weight"});
  stored.push_back(counting("model.final_norm.weight", {4}));
  fixture.write(stored);
  const auto refused = refusal(fixture);
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->fix, AllOf(HasSubstr("model.final_norm.weight"), Not(HasSubstr("--tie"))));
}

TEST(ReadPlan, ListsEveryShapeMismatchAndTheConfigKeyBehindIt) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  auto stored = tensors({kHead, kEmbed, "model.norm.weight"});
  stored.push_back(counting(kEmbed, {7, 4}));
  stored.push_back(counting("model.norm.weight", {5}));
  fixture.write(stored);
  const auto refused = refusal(fixture);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kShapeMismatch);
  EXPECT_THAT(refused->why,
              AllOf(HasSubstr("model.embed_tokens.weight: expected [6, 4], stored [7, 4]"),
                    HasSubstr("model.norm.weight: expected [4], stored [5]")));
  EXPECT_THAT(refused->fix, AllOf(HasSubstr("vocab_size = 6"), HasSubstr("hidden_size = 4")));
}

TEST(ReadPlan, RefusesAStoredDtypeThatCannotBeTrained) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  auto stored = tensors({kHead, "model.norm.weight"});
  stored.push_back({"model.norm.weight", DType::kI8, {4}, std::vector<std::byte>(4)});
  fixture.write(stored);
  const auto refused = refusal(fixture);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kDtypeNotLoadable);
  EXPECT_THAT(refused->where, HasSubstr("model.norm.weight (I8)"));
}

TEST(ReadPlan, ListsUnusedTensorsAndWarns) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  auto stored = tensors({kHead});
  stored.push_back(counting("model.layers.0.mlp.old.weight", {1}));
  fixture.write(stored);
  const ReadPlan plan = read_plan(fixture);
  EXPECT_THAT(plan.unused, ElementsAre("model.layers.0.mlp.old.weight"));
  ASSERT_EQ(plan.findings.size(), 1U);
  EXPECT_EQ(plan.findings[0].code, Code::kUnusedTensor);
  EXPECT_EQ(plan.findings[0].level, Level::kWarning);
  EXPECT_THAT(plan.findings[0].why, HasSubstr("4 B"));
}

TEST(ReadPlan, NotesBuffersThatTheFamilyKnows) {
  CheckpointFixture fixture(tiny_llama_config(kTied));
  auto stored = tensors({kHead});
  stored.push_back(counting("model.layers.0.self_attn.rotary_emb.inv_freq", {1}));
  fixture.write(stored);
  const ReadPlan plan = read_plan(fixture);
  EXPECT_THAT(plan.unused, ElementsAre("model.layers.0.self_attn.rotary_emb.inv_freq"));
  ASSERT_EQ(plan.findings.size(), 1U);
  EXPECT_EQ(plan.findings[0].code, Code::kKnownBuffer);
  EXPECT_EQ(plan.findings[0].level, Level::kNote);
}

} // namespace
} // namespace tieshard
