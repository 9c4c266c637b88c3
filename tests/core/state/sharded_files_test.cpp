#include "tieshard/core/state/sharded_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/base/refusal.h"
#include "tests/core/state/sharded_fixture.h"

namespace tieshard {
namespace {

using testing::dcp_name;
using ::testing::ElementsAre;
using testing::FixtureBlock;
using ::testing::IsEmpty;
using testing::sharded_file;
using ::testing::SizeIs;

void expect_refused(const TempDir& directory, Code code, const std::vector<std::string>& named) {
  expect_refusal<InputError>(code, named, [&] { ShardedFiles::open(directory.path()); });
}

TEST(ShardedFiles, PutTensorsTogetherFromAGrid) {
  const TempDir directory;
  testing::write_grid(directory);
  const ShardedFiles files = ShardedFiles::open(directory.path());
  ASSERT_THAT(files.tensors(), SizeIs(2));
  EXPECT_EQ(files.tensors()[0].name, "b");
  const ShardedTensor& w = *files.find("w");
  EXPECT_THAT(w.shape, ElementsAre(6, 8));
  EXPECT_EQ(w.dtype, DType::kI16);
  EXPECT_EQ(w.cut, -1);
  EXPECT_THAT(w.blocks, SizeIs(4));
  EXPECT_EQ(files.find("v"), nullptr);
  EXPECT_EQ(files.id(), "");
  EXPECT_THAT(files.findings(), IsEmpty());
}

TEST(ShardedFiles, KnowTheDimensionThatATensorIsCutOnAlsoByItsEmptyBlocks) {
  const TempDir directory;
  directory.write(dcp_name(0), sharded_file({{"w", {6, 8}, {0, 0}, {6, 4}}, {"small", {1, 8}, {0, 0}, {1, 8}}}));
  directory.write(dcp_name(1), sharded_file({{"w", {6, 8}, {0, 4}, {6, 4}}, {"small", {1, 8}, {1, 0}, {0, 8}}}));
  const ShardedFiles files = ShardedFiles::open(directory.path());
  EXPECT_EQ(files.find("w")->cut, 1);
  EXPECT_EQ(files.find("small")->cut, 0);
  EXPECT_THAT(files.find("small")->blocks, SizeIs(1));
}

TEST(ShardedFiles, HoldZeroDimAndEmptyTensors) {
  const TempDir directory;
  directory.write(dcp_name(0), sharded_file({{"step", {}, {}, {}, 3}, {"none", {0, 4}, {0, 0}, {0, 4}}}));
  const ShardedFiles files = ShardedFiles::open(directory.path());
  EXPECT_THAT(files.find("step")->blocks, SizeIs(1));
  EXPECT_THAT(files.find("none")->blocks, IsEmpty());
}

TEST(ShardedFiles, NameTheFirstMissingElementOfAHole) {
  const TempDir directory;
  testing::write_grid(directory);
  std::filesystem::remove(directory / dcp_name(1));
  expect_refused(directory, Code::kBlockMissing, {"w", "48", "36", "[0, 4]", dcp_name(0), dcp_name(3)});
  testing::write_grid(directory);
  std::filesystem::remove(directory / dcp_name(2));
  expect_refused(directory, Code::kBlockMissing, {"w", "[3, 0]"});
}

TEST(ShardedFiles, MissALastBlockWhereAFileStatesTheWholeShape) {
  const TempDir directory;
  directory.write(
      dcp_name(0),
      sharded_file(
          {{"w", {6, 8}, {0, 0}, {3, 8}}},
          {},
          R"({\"w\": {\"saved_offsets\": [0, 0], \"shape\": [6, 8], \"more\": {\"any\": 1}}, \"gone\": {\"saved_offsets\": []}})"));
  expect_refused(directory, Code::kBlockMissing, {"w", "[6, 8]", "[3, 0]"});
}

TEST(ShardedFiles, NameBothFilesOfAnOverlap) {
  const TempDir directory;
  testing::write_grid(directory);
  directory.write(dcp_name(4), sharded_file({{"w", {6, 8}, {5, 7}, {1, 1}}}));
  expect_refused(directory, Code::kBlockOverlap, {"w", dcp_name(3), dcp_name(4), "[5, 7]"});
}

TEST(ShardedFiles, CountAReplicatedTensorThatStandsTwiceAsOverlap) {
  const TempDir directory;
  directory.write(dcp_name(0), sharded_file({{"step", {}, {}, {}}}));
  directory.write(dcp_name(1), sharded_file({{"step", {}, {}, {}}}));
  expect_refused(directory, Code::kBlockOverlap, {"step", dcp_name(0), dcp_name(1)});
}

TEST(ShardedFiles, RefuseTheRestOfASaveOnMoreRanks) {
  const TempDir directory; // saved on 4 ranks, then on 2 into the same directory
  directory.write(dcp_name(0), sharded_file({{"w", {8}, {0}, {4}}}));
  directory.write(dcp_name(1), sharded_file({{"w", {8}, {4}, {4}}}));
  directory.write(dcp_name(2), sharded_file({{"w", {8}, {4}, {2}}}));
  directory.write(dcp_name(3), sharded_file({{"w", {8}, {6}, {2}}}));
  expect_refused(directory, Code::kBlockOverlap, {"w"});
}

TEST(ShardedFiles, RefuseSeveralSaves) {
  const TempDir directory;
  directory.write(dcp_name(0), sharded_file({{"w", {8}, {0}, {4}}}, {{"tieshard_id", "aa"}}));
  directory.write(dcp_name(1), sharded_file({{"w", {8}, {4}, {4}}}, {{"tieshard_id", "bb"}}));
  expect_refused(directory, Code::kSavesMixed, {"aa", "bb", dcp_name(0), dcp_name(1)});
  directory.write(dcp_name(1), sharded_file({{"w", {8}, {4}, {4}}}));
  expect_refused(directory, Code::kSavesMixed, {"aa", "none"});
  directory.write(dcp_name(1), sharded_file({{"w", {8}, {4}, {4}}}, {{"tieshard_id", "aa"}}));
  EXPECT_EQ(ShardedFiles::open(directory.path()).id(), "aa");
}

TEST(ShardedFiles, RefuseBlocksThatContradictEachOther) {
  const TempDir directory;
  directory.write(dcp_name(0), sharded_file({{"w", {8}, {0}, {4}}}));
  directory.write(dcp_name(1), sharded_file({{"w", {8, 1}, {4, 0}, {4, 1}}}));
  expect_refused(directory, Code::kShapeMismatch, {"w", "1 dimensions", "2 dimensions"});
  directory.write(dcp_name(1),
                  packed(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":[4]}}"},)" +
                             entry("w", "BF16", "[4]", "[0,8]") + "}",
                         "12345678"));
  expect_refused(directory, Code::kTieDtypeDiffers, {"w", "I16", "BF16"});
  const auto stated = [](const std::string& offset, const std::string& shape) {
    return R"({\"w\":{\"saved_offsets\":[)" + offset + R"(],\"shape\":[)" + shape + "]}}";
  };
  directory.write(dcp_name(0), sharded_file({{"w", {8}, {0}, {4}}}, {}, stated("0", "8")));
  directory.write(dcp_name(1), sharded_file({{"w", {8}, {4}, {4}}}, {}, stated("4", "9")));
  expect_refused(directory, Code::kShapeMismatch, {"w", "[8]", "[9]"});
  directory.write(dcp_name(1), sharded_file({{"w", {8}, {6}, {4}}}));
  expect_refused(directory, Code::kShapeMismatch, {"w", "[8]", "[10]"});
}

TEST(ShardedFiles, RefuseShardingInfoThatIsNotAsItHasToBe) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"not json", "json"},
      {"[]", "object"},
      {R"({})", "every tensor"},
      {R"({\"w\": 3})", "saved_offsets"},
      {R"({\"w\": {}})", "saved_offsets"},
      {R"({\"w\": {\"saved_offsets\": 0}})", "array"},
      {R"({\"w\": {\"saved_offsets\": [0, 0]}})", "1 offsets"},
      {R"({\"w\": {\"saved_offsets\": [-1]}})", "-1"},
      {R"({\"w\": {\"saved_offsets\": [1.5]}})", "1.5"},
      {R"({\"w\": {\"saved_offsets\": [9007199254740993]}})", "2^53"},
      {R"({\"w\": {\"saved_offsets\": [0], \"shape\": [8, 1]}})", "1 dimensions"},
      {R"({\"w\": {\"saved_offsets\": [5], \"shape\": [8]}})", "[8]"},
      {R"({\"w\": {\"saved_offsets\": [0]}, \"w\": {\"saved_offsets\": [0]}})", "w"},
  };
  for (const auto& [info, named] : cases) {
    const TempDir directory;
    directory.write(dcp_name(0), sharded_file({{"w", {4}, {0}, {4}}}, {}, info));
    SCOPED_TRACE(info);
    expect_refused(directory, Code::kBadEntry, {dcp_name(0), "DCP_SHARDING_INFO", named == "json" ? "" : named});
  }
}

TEST(ShardedFiles, RefuseAFileThatIsMissingByTheNumbersOfTheOthers) {
  const TempDir directory;
  directory.write(kSecondShard, u8_file({{"b", "x"}}));
  expect_refused(directory, Code::kShardMissing, {"1", "2"});
  directory.write(kFirstShard, u8_file({{"a", "x"}}));
  EXPECT_THAT(ShardedFiles::open(directory.path()).tensors(), SizeIs(2));
}

TEST(ShardedFiles, ReadPlainFilesWithTiesInTheirMetadata) {
  const TempDir directory;
  directory.write(kSingleFile,
                  packed(R"({"__metadata__":{"format":"pt","lm_head.weight":"model.embed_tokens.weight"},)" +
                             entry("model.embed_tokens.weight", "U8", "[2]", "[0,2]") + "}",
                         "xy"));
  const ShardedFiles files = ShardedFiles::open(directory.path());
  ASSERT_THAT(files.tensors(), SizeIs(1));
  EXPECT_EQ(files.tensors()[0].blocks.at(0).box, (Box{.offsets = {0}, .shape = {2}}));
}

TEST(ShardedFiles, TakeASingleFileBesideStaleShardsAndSaySo) {
  const TempDir directory;
  directory.write(kSingleFile, u8_file({{"a", "new"}}));
  directory.write(kFirstShard, u8_file({{"a", "old"}}));
  const ShardedFiles files = ShardedFiles::open(directory.path());
  ASSERT_THAT(files.files(), SizeIs(1));
  ASSERT_THAT(files.findings(), SizeIs(1));
  expect_names(files.findings()[0], Code::kSavesMixed, {kFirstShard, kSingleFile});
  EXPECT_EQ(files.findings()[0].level, Level::kWarning);
}

TEST(ShardedFiles, TakeTheShardsThatTheIndexNamesAndSayWhichTheyLeave) {
  const TempDir directory;
  directory.write(kFirstShard, u8_file({{"a", "1"}}));
  directory.write(kSecondShard, u8_file({{"b", "2"}}));
  directory.write(kIndexFile, index_text({{"a", kFirstShard}, {"b", kSecondShard}}));
  directory.write("model-00003-of-00003.safetensors", u8_file({{"a", "0"}}));
  const ShardedFiles files = ShardedFiles::open(directory.path());
  EXPECT_THAT(files.files(), SizeIs(2));
  ASSERT_THAT(files.findings(), SizeIs(1));
  expect_names(files.findings()[0], Code::kSavesMixed, {"model-00003-of-00003.safetensors"});
}

TEST(ShardedFiles, RefuseAStaleShardOfTheIndexsOwnSaveAsACheckpointDoes) {
  const TempDir directory;
  directory.write(kFirstShard, u8_file({{"a", "1"}}));
  directory.write(kSecondShard, u8_file({{"c", "2"}}));
  directory.write(kIndexFile, index_text({{"a", kFirstShard}}));
  expect_refused(directory, Code::kTensorNotInIndex, {"c", kSecondShard});
}

TEST(ShardedFiles, DoNotAskAnIndexWhereFilesSayWhereTheirTensorsLie) {
  const TempDir directory; // DCP reads no index
  testing::write_grid(directory);
  directory.write(kIndexFile, index_text({{"a", "model-00001-of-00007.safetensors"}}));
  EXPECT_THAT(ShardedFiles::open(directory.path()).tensors(), SizeIs(2));
  directory.write(kSingleFile, sharded_file({{"w", {6, 8}, {0, 0}, {6, 8}}}, {}, "-"));
  expect_refused(directory, Code::kBlockOverlap, {"w", kSingleFile});
}

TEST(ShardedFiles, RefuseADirectoryWithoutWeightsAndOneThatIsNotThere) {
  const TempDir directory;
  expect_refused(directory, Code::kNoWeights, {});
  expect_refusal<InputError>(Code::kDirectoryNotFound, {"none"}, [&] { ShardedFiles::open(directory / "none"); });
}

TEST(ShardedFiles, RefuseAFileThatIsCut) {
  const TempDir directory;
  testing::write_grid(directory);
  std::filesystem::resize_file(directory / dcp_name(3), std::filesystem::file_size(directory / dcp_name(3)) - 1);
  expect_refused(directory, Code::kTruncated, {dcp_name(3)});
}

TEST(ShardedFiles, ProveManyBlocksOfATensor) {
  const TempDir directory;
  for (int rank = 0; rank < 9; ++rank) {
    std::vector<FixtureBlock> blocks;
    for (int tensor = 0; tensor < 200; ++tensor) {
      blocks.push_back({"t" + std::to_string(tensor), {2, 9}, {0, rank}, {2, 1}, tensor});
    }
    directory.write(dcp_name(rank), sharded_file(blocks));
  }
  EXPECT_THAT(ShardedFiles::open(directory.path()).tensors(), SizeIs(200));
  std::filesystem::remove(directory / dcp_name(4));
  expect_refused(directory, Code::kBlockMissing, {"[0, 4]"});
}

} // namespace
} // namespace tieshard
