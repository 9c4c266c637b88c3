#include "tieshard/core/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/checkpoint/checkpoint_files.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;
using WeightMap = std::vector<std::pair<std::string, std::string>>;

/// A checkpoint in two shards: "embed" and "q" in the first, "norm" and "v" in the second.
class CheckpointDir : public testing::Test {
 protected:
  CheckpointDir() {
    dir.write("config.json", R"({"model_type":"llama","tie_word_embeddings":true})");
  }

  void write_shards() {
    dir.write(kFirstShard, u8_file({{"embed", "EEEE"}, {"q", "QQ"}}));
    dir.write(kSecondShard, u8_file({{"norm", "N"}, {"v", "VVV"}}));
    dir.write(kIndexFile, index_text(map, R"({"total_size":10})"));
  }

  Checkpoint open() {
    return Checkpoint::open(dir.path());
  }

  void expect_refused(Code code, const std::vector<std::string>& named) {
    expect_refusal<InputError>(code, named, [this] { open(); });
  }

  /// The bytes that the checkpoint says a tensor has.
  std::string bytes_of(const Checkpoint& checkpoint, const std::string& name) {
    const StoredTensor* tensor = checkpoint.find(name);
    return tensor == nullptr ? "(absent)"
                             : dir.read(checkpoint.file_name(*tensor)).substr(tensor->offset, tensor->bytes);
  }

  TempDir dir;
  WeightMap map = {{"embed", kFirstShard}, {"q", kFirstShard}, {"norm", kSecondShard}, {"v", kSecondShard}};
};

TEST_F(CheckpointDir, OpensASingleFile) {
  dir.write(kSingleFile, u8_file({{"v", "VVV"}, {"embed", "EE"}}));
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.files().size(), 1U);
  EXPECT_EQ(checkpoint.config().model_type(), "llama");
  EXPECT_EQ(checkpoint.config().where(), "config.json");
  EXPECT_EQ(checkpoint.directory(), dir.path());
  EXPECT_TRUE(checkpoint.findings().empty());
  ASSERT_EQ(checkpoint.tensors().size(), 2U);
  EXPECT_EQ(checkpoint.tensors()[0].name, "embed") << "sorted by name";
  EXPECT_EQ(checkpoint.tensors()[0].dtype, DType::kU8);
  EXPECT_EQ(checkpoint.tensors()[1].shape, Shape{3});
  EXPECT_EQ(bytes_of(checkpoint, "v"), "VVV");
  EXPECT_EQ(checkpoint.find("lm_head"), nullptr);
  EXPECT_EQ(checkpoint.find(""), nullptr);
}

TEST_F(CheckpointDir, OpensShardsByTheirIndex) {
  write_shards();
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.files().size(), 2U);
  EXPECT_EQ(checkpoint.tensors().size(), 4U);
  EXPECT_TRUE(checkpoint.findings().empty());
  EXPECT_EQ(bytes_of(checkpoint, "embed"), "EEEE");
  EXPECT_EQ(bytes_of(checkpoint, "q"), "QQ");
  EXPECT_EQ(bytes_of(checkpoint, "norm"), "N");
  EXPECT_EQ(bytes_of(checkpoint, "v"), "VVV");
  EXPECT_EQ(checkpoint.file_name(*checkpoint.find("v")), kSecondShard);
}

TEST_F(CheckpointDir, OpensAFarmOfSymbolicLinks) {
  write_shards();
  const TempDir snapshot;
  for (const std::string& name : dir.names()) {
    fs::create_symlink(dir / name, snapshot / name);
  }
  fs::create_directory_symlink(snapshot.path(), dir / "snapshot");
  EXPECT_EQ(Checkpoint::open(dir / "snapshot").tensors().size(), 4U);
}

TEST_F(CheckpointDir, PassesTheHeaderLimitOn) {
  dir.write(kSingleFile, u8_file({{"v", "VVV"}}));
  expect_refusal<InputError>(Code::kHeaderTooLarge, {kSingleFile, "10 bytes"}, [this] {
    Checkpoint::open(dir.path(), {.max_header_bytes = 10});
  });
  write_shards();
  fs::remove(dir / kSingleFile);
  expect_refusal<InputError>(
      Code::kHeaderTooLarge, {kFirstShard}, [this] { Checkpoint::open(dir.path(), {.max_header_bytes = 10}); });
}

TEST_F(CheckpointDir, NamesADirectoryThatIsNotThere) {
  expect_refusal<InputError>(Code::kDirectoryNotFound, {"absent"}, [this] { Checkpoint::open(dir / "absent"); });
}

TEST_F(CheckpointDir, AShardByItselfHasNeitherConfigNorIndex) {
  write_shards();
  const Checkpoint checkpoint = Checkpoint::open(dir / kSecondShard);
  EXPECT_EQ(checkpoint.files().size(), 1U);
  ASSERT_EQ(checkpoint.tensors().size(), 2U);
  EXPECT_EQ(bytes_of(checkpoint, "v"), "VVV");
  EXPECT_EQ(checkpoint.config().model_type(), "");
  EXPECT_EQ(checkpoint.directory(), dir.path());
  ASSERT_EQ(checkpoint.findings().size(), 1U);
  EXPECT_EQ(checkpoint.findings()[0].code, Code::kConfigMissing);
  EXPECT_EQ(checkpoint.findings()[0].level, Level::kNote);
  EXPECT_NE(checkpoint.findings()[0].why.find("is of all files together"), std::string::npos);
}

TEST_F(CheckpointDir, TheOneWeightsFileIsItsDirectory) {
  dir.write(kSingleFile, u8_file({{"v", "VVV"}}));
  const Checkpoint checkpoint = Checkpoint::open(dir / kSingleFile);
  EXPECT_EQ(checkpoint.config().model_type(), "llama");
  EXPECT_EQ(checkpoint.directory(), dir.path());
  EXPECT_TRUE(checkpoint.findings().empty());
  fs::remove(dir / "config.json");
  EXPECT_NE(Checkpoint::open(dir / kSingleFile).findings().at(0).why.find("no config.json"), std::string::npos);
}

TEST_F(CheckpointDir, AFileThatIsNoWeightsFileIsRefusedAsOne) {
  expect_refusal<InputError>(Code::kNotSafetensors, {"config.json"}, [this] { Checkpoint::open(dir / "config.json"); });
}

TEST_F(CheckpointDir, SaysWhyADirectoryCannotBeAskedAbout) {
  fs::create_symlink("loop", dir / "loop");
  expect_refusal<InputError>(
      Code::kDirectoryNotFound, {"loop", "symbolic links"}, [this] { Checkpoint::open(dir / "loop"); });
}

TEST_F(CheckpointDir, NamesAMissingOrBrokenConfig) {
  dir.write(kSingleFile, u8_file({{"v", "V"}}));
  dir.write("config.json", "{\"model_type\": \"lla");
  expect_refused(Code::kConfigMalformed, {"config.json"});
  fs::remove(dir / "config.json");
  expect_refused(Code::kConfigMissing, {"config.json"});
}

TEST_F(CheckpointDir, WithoutWeightsSaysWhatIsThereInstead) {
  dir.write("pytorch_model.bin", "x");
  dir.write("consolidated.safetensors", "x");
  expect_refused(Code::kNoWeights, {"model.safetensors", "pytorch_model.bin", "consolidated.safetensors"});
}

TEST_F(CheckpointDir, NamesAWeightsLinkThatLeadsNowhere) {
  fs::create_symlink("../blobs/5eed", dir / kSingleFile);
  expect_refused(Code::kFileNotFound, {kSingleFile, "symbolic link"});
}

TEST_F(CheckpointDir, RefusesABrokenIndex) {
  write_shards();
  dir.write(kIndexFile, index_text({}));
  expect_refused(Code::kIndexMalformed, {kIndexFile, "weight_map"});
}

TEST_F(CheckpointDir, RefusesAnIndexThatLeavesTheDirectory) {
  write_shards();
  map[2].second = map[3].second = "../outside.safetensors";
  dir.write(kIndexFile, index_text(map));
  expect_refused(Code::kPathEscape, {kIndexFile, "../outside.safetensors"});
}

TEST_F(CheckpointDir, NamesEveryMissingShard) {
  write_shards();
  fs::remove(dir / kSecondShard);
  expect_refused(Code::kShardMissing, {kIndexFile, kSecondShard, "2 shards", "got 1"});
  fs::remove(dir / kFirstShard);
  expect_refused(Code::kShardMissing, {kFirstShard, kSecondShard});
}

TEST_F(CheckpointDir, TakesAShardNameThatCannotExistAsMissing) {
  write_shards();
  map[0].second = std::string(5000, 'x');
  dir.write(kIndexFile, index_text(map));
  expect_refused(Code::kShardMissing, {kIndexFile, "(5,000 bytes)"});
}

TEST_F(CheckpointDir, RefusesABrokenShardNamingIt) {
  write_shards();
  dir.write(kSecondShard, u8_file({{"norm", "N"}, {"v", "VVV"}}) + "x");
  expect_refused(Code::kTrailingBytes, {kSecondShard});
}

TEST_F(CheckpointDir, RefusesATensorThatLiesInAnotherShard) {
  write_shards();
  map[2].second = kFirstShard;
  dir.write(kIndexFile, index_text(map));
  expect_refused(Code::kTensorNotInShard, {kIndexFile, "norm", kFirstShard, kSecondShard});
}

TEST_F(CheckpointDir, RefusesATensorThatNoShardHolds) {
  write_shards();
  map.emplace_back("lm_head", kFirstShard);
  dir.write(kIndexFile, index_text(map));
  expect_refused(Code::kTensorNotInShard, {kIndexFile, "lm_head", "no shard"});
}

TEST_F(CheckpointDir, RefusesStoredTensorsThatTheIndexLeavesOut) {
  write_shards();
  map.pop_back();
  dir.write(kIndexFile, index_text(map));
  expect_refused(Code::kTensorNotInIndex, {kIndexFile, kSecondShard, "v"});
}

TEST_F(CheckpointDir, RefusesAShardThatTheIndexLeavesOut) {
  write_shards();
  dir.write(kIndexFile, index_text({map[0], map[1]}));
  expect_refused(Code::kTensorNotInIndex, {kIndexFile, kSecondShard, "norm", "v"});
}

TEST_F(CheckpointDir, LooksOnlyAtUnmentionedFilesOfTheSameSave) {
  write_shards();
  for (const char* other : {"model-00003-of-00003.safetensors",
                            "adapter_model.safetensors",
                            "model-of-00002.safetensors",
                            "other-00001-of-00002.safetensors",
                            "model-00001-of-00002.bin",
                            "consolidated.safetensors"}) {
    dir.write(other, u8_file({{"stray", "S"}}));
  }
  EXPECT_EQ(open().tensors().size(), 4U);
}

TEST_F(CheckpointDir, WarnsOfATensorInTwoShardsAndTakesTheOneThatTheIndexNames) {
  for (const char* counted : {kFirstShard, kSecondShard}) {
    SCOPED_TRACE(counted);
    dir.write(kFirstShard, u8_file({{"embed", "EEEE"}, {"q", "QQ"}, {"norm", "1"}}));
    dir.write(kSecondShard, u8_file({{"norm", "2"}, {"v", "VVV"}}));
    map[2].second = counted;
    dir.write(kIndexFile, index_text(map));
    const Checkpoint checkpoint = open();
    ASSERT_EQ(checkpoint.findings().size(), 1U);
    EXPECT_EQ(checkpoint.findings()[0].level, Level::kWarning);
    expect_names(checkpoint.findings()[0],
                 Code::kTensorInTwoShards,
                 {"norm", kFirstShard, kSecondShard, std::string("copy in ") + counted});
    EXPECT_EQ(checkpoint.tensors().size(), 4U);
    EXPECT_EQ(bytes_of(checkpoint, "norm"), counted == kFirstShard ? "1" : "2");
  }
}

TEST_F(CheckpointDir, WarnsOfAWrongTotalSize) {
  write_shards();
  for (const char* wrong : {"123456789", "11", "10.5", "\"10\"", "-10", "[]"}) {
    SCOPED_TRACE(wrong);
    dir.write(kIndexFile, index_text(map, std::string("{\"total_size\":") + wrong + "}"));
    const Checkpoint checkpoint = open();
    ASSERT_EQ(checkpoint.findings().size(), 1U);
    EXPECT_EQ(checkpoint.findings()[0].level, Level::kWarning);
    expect_names(checkpoint.findings()[0], Code::kTotalSize, {kIndexFile, "total_size", "10 bytes", wrong});
  }
  for (const char* right : {R"({"total_size":10})", R"({"total_size":10.0})", "{}"}) {
    dir.write(kIndexFile, index_text(map, right));
    EXPECT_TRUE(open().findings().empty()) << right;
  }
}

TEST_F(CheckpointDir, CountsATensorInTwoShardsOnceOrTwice) {
  write_shards();
  dir.write(kFirstShard, u8_file({{"embed", "EEEE"}, {"q", "QQ"}, {"norm", "N"}}));
  for (const char* total : {"10", "11"}) {
    dir.write(kIndexFile, index_text(map, std::string("{\"total_size\":") + total + "}"));
    EXPECT_EQ(open().findings().size(), 1U) << "only the one about the two shards";
  }
}

TEST_F(CheckpointDir, TakesTheSingleFileBesideAnIndexWithoutShards) {
  dir.write(kSingleFile, u8_file({{"v", "VVV"}}));
  for (const std::string& text : {index_text(map), std::string("{\"weight_map\":"), index_text({{"v", "../v"}})}) {
    SCOPED_TRACE(text);
    dir.write(kIndexFile, text);
    const Checkpoint checkpoint = open();
    EXPECT_EQ(bytes_of(checkpoint, "v"), "VVV");
    ASSERT_EQ(checkpoint.findings().size(), 1U);
    EXPECT_EQ(checkpoint.findings()[0].level, Level::kWarning);
    expect_names(checkpoint.findings()[0], Code::kStaleIndex, {kIndexFile, kSingleFile});
  }
}

TEST_F(CheckpointDir, SaysThatTheShardsBesideASingleFileAreNotLoaded) {
  write_shards();
  dir.write(kSingleFile, u8_file({{"v", "old"}}));
  const Checkpoint checkpoint = open();
  EXPECT_EQ(bytes_of(checkpoint, "v"), "old");
  ASSERT_EQ(checkpoint.findings().size(), 1U);
  expect_names(checkpoint.findings()[0], Code::kStaleIndex, {"shards are there too", kFirstShard, kSecondShard});
}

TEST_F(CheckpointDir, AcceptsAnIndexOfTheSingleFile) {
  dir.write(kSingleFile, u8_file({{"v", "VVV"}}));
  dir.write(kIndexFile, index_text({{"v", kSingleFile}}));
  const Checkpoint checkpoint = open();
  EXPECT_TRUE(checkpoint.findings().empty());
  EXPECT_EQ(bytes_of(checkpoint, "v"), "VVV");
  dir.write(kIndexFile, index_text({{"v", kSingleFile}, {"w", kSingleFile}}));
  expect_refused(Code::kTensorNotInShard, {"w", kSingleFile});
}

TEST_F(CheckpointDir, CanBeMoved) {
  write_shards();
  Checkpoint first = open();
  const Checkpoint second = std::move(first);
  EXPECT_EQ(bytes_of(second, "q"), "QQ");
}

TEST_F(CheckpointDir, RefusesWhatIsNoRegularFileWithoutWaitingForIt) {
  for (const char* name : {"config.json", kIndexFile, kFirstShard, "model-00003-of-00002.safetensors", kSingleFile}) {
    SCOPED_TRACE(name);
    write_shards();
    fs::remove(dir / name);
    ASSERT_EQ(::mkfifo((dir / name).c_str(), 0600), 0);
    expect_refused(Code::kFileUnreadable, {name, "pipe"});
    fs::remove(dir / name);
    fs::create_directory(dir / name);
    expect_refused(Code::kFileUnreadable, {name, "a directory"});
    fs::remove(dir / name);
    dir.write("config.json", "{}");
  }
}

TEST_F(CheckpointDir, RefusesAConfigLargerThanAnyOfItsKind) {
  dir.write(kSingleFile, u8_file({{"v", "VVV"}}));
  dir.write("config.json", "{\"a\":\"" + std::string(17 << 20, 'x') + "\"}");
  expect_refused(Code::kFileTooLarge, {"config.json", "16777216"});
}

TEST_F(CheckpointDir, RefusesAnIndexThatNamesAFileUnderTwoSpellings) {
  map.emplace_back("again", std::string("./") + kFirstShard);
  write_shards();
  expect_refused(Code::kPathEscape, {"again", "./model-00001"});
}

} // namespace
} // namespace tieshard
