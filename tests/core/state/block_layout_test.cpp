#include "tieshard/core/state/block_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/core/base/refusal.h"

namespace tieshard {
namespace {

using testing::ElementsAre;

TEST(BlockOf, IsTheChunkOfOneDimensionAndAllOfTheOthers) {
  const TensorBlock block = block_of("w", DType::kF32, {6, 8}, 1, {.offset = 3, .size = 2});
  EXPECT_EQ(block.box, (Box{.offsets = {0, 3}, .shape = {6, 2}}));
  EXPECT_THAT(block.whole, ElementsAre(6, 8));
}

TEST(BlockOf, IsAllOfAReplicatedTensorAndNothingAtTheEndForAnEmptyChunk) {
  EXPECT_EQ(block_of("s", DType::kF32, {}, -1, {.offset = 0, .size = 1}).box, Box{});
  EXPECT_EQ(block_of("w", DType::kF32, {6, 8}, 0, {.offset = 6, .size = 0}).box,
            (Box{.offsets = {6, 0}, .shape = {0, 8}}));
}

TEST(ShardFileName, CountsFromOneInFiveDigits) {
  EXPECT_EQ(shard_file_name(0, 0, 1), "shard-00001-model-00001-of-00001.safetensors");
  EXPECT_EQ(shard_file_name(11, 1, 2), "shard-00012-model-00002-of-00002.safetensors");
}

TEST(ShardFileLayout, SaysWhereTheBlocksLieAndWhoseTheyAre) {
  const std::vector<TensorBlock> blocks = {block_of("w", DType::kBF16, {6, 8}, 0, {.offset = 3, .size = 3}),
                                           block_of("s", DType::kF32, {}, -1, {.offset = 0, .size = 1})};
  const SafetensorsLayout layout = layout_shard_file(blocks, "00ff");
  const auto& metadata = layout.header.metadata;
  EXPECT_EQ(metadata.at("DCP_VERSION"), "1.0");
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.at("tieshard_id"), "00ff");
  const auto info = nlohmann::json::parse(metadata.at("DCP_SHARDING_INFO"));
  EXPECT_EQ(info, nlohmann::json::parse(R"({"w": {"saved_offsets": [3, 0], "shape": [6, 8]},
                                            "s": {"saved_offsets": [], "shape": []}})"));
  EXPECT_EQ(layout.header.tensors.size(), 2U);
  EXPECT_THAT(layout.header.tensors.at(1).shape, ElementsAre(3, 8)); // F32 comes before BF16
}

TEST(ShardFileLayout, StatesNoWholeShapeThatIsNotKnown) {
  TensorBlock block = block_of("w", DType::kBF16, {6, 8}, 0, {.offset = 3, .size = 3});
  block.states_whole = false;
  EXPECT_EQ(nlohmann::json::parse(layout_shard_file({block}, "").header.metadata.at("DCP_SHARDING_INFO")),
            nlohmann::json::parse(R"({"w": {"saved_offsets": [3, 0]}})"));
}

TEST(ShardFileLayout, HasNoIdWhereThereIsNone) {
  EXPECT_FALSE(layout_shard_file({}, "").header.metadata.contains("tieshard_id"));
}

TEST(ShardFileLayout, RefusesWhatALayoutRefuses) {
  const TensorBlock block = block_of("w", DType::kF32, {2}, -1, {.offset = 0, .size = 1});
  expect_refusal<UsageError>(Code::kDuplicateTensorName, {"w"}, [&] { layout_shard_file({block, block}, "00ff"); });
  TensorBlock odd = block;
  odd.name = "\xFF";
  expect_refusal<UsageError>(Code::kJsonNotUtf8, {}, [&] { layout_shard_file({odd}, "00ff"); });
}

} // namespace
} // namespace tieshard
