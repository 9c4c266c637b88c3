#include "tieshard/core/state/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/file.h"
#include "tieshard/core/state/box_reader.h"
#include "tieshard/core/state/directory_lock.h"
#include "tieshard/core/state/find_checkpoint.h"
#include "tieshard/core/state/shard_file_writer.h"
#include "tieshard/core/state/trainer_state.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/checkpoint/checkpoint_files.h"
#include "tests/core/state/sharded_fixture.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

using testing::dcp_name;
using testing::sharded_file;

constexpr const char* kId = "0123456789abcdef0123456789abcdef";

/// The whole tensor's bytes: element n of `name` has the value of a running number.
std::vector<std::byte> content(const std::string& name, const Shape& shape, DType dtype) {
  std::vector<std::byte> bytes(*checked_bytes(shape, dtype));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 37 + i / 251 + name.size() * 11);
  }
  return bytes;
}

Manifest some_manifest() {
  const OptimizerRecord adamw{.moments = {"exp_avg", "exp_avg_sq"}, .counters = {{"step", 7}}};
  Manifest manifest;
  manifest.id = kId;
  manifest.step = 7;
  manifest.optimizer = "adamw";
  manifest.parameters = {{.fqn = "embed", .dtype = DType::kBF16, .shape = {11, 6}, .dim = 1, .optimizer = adamw},
                         {.fqn = "cube", .dtype = DType::kF32, .shape = {3, 5, 4}, .dim = 1, .optimizer = adamw},
                         {.fqn = "rows", .dtype = DType::kF32, .shape = {7, 3}, .dim = 0, .optimizer = adamw},
                         {.fqn = "small", .dtype = DType::kF32, .shape = {1}, .dim = 0},
                         {.fqn = "frozen", .dtype = DType::kBF16, .shape = {4, 9}, .dim = 1, .trainable = false},
                         {.fqn = "none", .dtype = DType::kF32, .shape = {0, 4}, .dim = 1},
                         {.fqn = "scale", .dtype = DType::kF32, .shape = {}, .dim = -1, .optimizer = adamw}};
  manifest.ties = {{.canonical = "embed", .alias = "head", .evidence = "config-flag"}};
  return manifest;
}

/// Writes a checkpoint as a run over `ranks` ranks does.
void write_checkpoint(const fs::path& directory, std::int64_t ranks, Manifest manifest = some_manifest()) {
  fs::create_directories(directory);
  manifest.mesh = {{.name = "dp_shard", .size = ranks}};
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<BlockInMemory> blocks;
    std::vector<std::vector<std::byte>> parts;
    const auto add = [&](const std::string& name, const ParameterRecord& parameter, DType dtype) {
      if (parameter.dim < 0 && rank > 0) {
        return;
      }
      const ChunkRange chunk = parameter.dim < 0
                                   ? ChunkRange{}
                                   : chunk_range(parameter.shape[static_cast<std::size_t>(parameter.dim)], ranks, rank);
      const TensorBlock block = block_of(name, dtype, parameter.shape, parameter.dim, chunk);
      parts.emplace_back(*checked_bytes(block.box.shape, dtype));
      const Box whole{.offsets = Shape(parameter.shape.size(), 0), .shape = parameter.shape};
      if (!parts.back().empty()) {
        copy_box(block.box,
                 whole,
                 content(name, parameter.shape, dtype).data(),
                 block.box,
                 parts.back().data(),
                 static_cast<std::uint64_t>(bits(dtype)) / 8);
      }
      blocks.push_back({.block = block, .data = parts.back().data()});
    };
    for (const ParameterRecord& parameter : manifest.parameters) {
      add(parameter.fqn, parameter, parameter.dtype);
      for (const std::string& moment :
           parameter.optimizer ? parameter.optimizer->moments : std::vector<std::string>()) {
        add(parameter.fqn + "." + moment, parameter, DType::kF32);
      }
    }
    manifest.files.push_back(write_shard_file(directory, shard_file_name(rank, 0, 1), blocks, manifest.id));
  }
  write_text_file(directory / "trainer.json", to_json(TrainerState{.step = manifest.step, .generators = {"00", "01"}}));
  manifest.files.push_back(record_of(directory, "trainer.json"));
  write_text_file(directory / "manifest.json", to_json(manifest));
}

void expect_same_tensors(const fs::path& directory) {
  const ShardedFiles files = ShardedFiles::open(directory);
  EXPECT_EQ(files.tensors().size(), 15U);
  for (const ShardedTensor& tensor : files.tensors()) {
    std::vector<std::byte> bytes(*checked_bytes(tensor.shape, tensor.dtype));
    BoxReader(files).read(tensor, {.offsets = Shape(tensor.shape.size(), 0), .shape = tensor.shape}, bytes.data());
    EXPECT_EQ(bytes, content(tensor.name, tensor.shape, tensor.dtype)) << tensor.name;
  }
}

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_same_files(const fs::path& one, const fs::path& other) {
  ASSERT_EQ(list_directory(one), list_directory(other));
  for (const std::string& name : list_directory(one)) {
    EXPECT_EQ(bytes_of_file(one / name), bytes_of_file(other / name)) << name;
  }
}

TEST(Reshard, FromAnyNumberOfRanksToAnyOtherAndBackGivesTheSameFiles) {
  for (std::int64_t before = 1; before <= 4; ++before) {
    for (std::int64_t after = 1; after <= 5; ++after) {
      const TempDir directory;
      write_checkpoint(directory / "a", before);
      reshard_checkpoint(directory / "a", directory / "b", {.ranks = after});
      expect_same_tensors(directory / "b");
      EXPECT_EQ(open_manifest(directory / "b", Verify::kHashes).mesh.at(0).size, after);
      reshard_checkpoint(directory / "b", directory / "c", {.ranks = before});
      expect_same_files(directory / "a", directory / "c");
      const TempDir fresh; // what a run over that many ranks would have written
      write_checkpoint(fresh / "b", after);
      expect_same_files(directory / "b", fresh / "b");
    }
  }
}

TEST(Reshard, SplitsWhateverTheShapeToFitAnyMemoryAndAnyThreads) {
  const TempDir directory;
  write_checkpoint(directory / "a", 3);
  reshard_checkpoint(directory / "a", directory / "wide", {.ranks = 2, .shard_dim = ShardDimPolicy::kFirst});
  int number = 0;
  for (const std::uint64_t memory : {1, 30, 100, 1000}) {
    for (const int threads : {1, 2, 5}) {
      const fs::path out = directory / ("out" + std::to_string(number++));
      reshard_checkpoint(directory / "a",
                         out,
                         {.ranks = 2, .shard_dim = ShardDimPolicy::kFirst, .memory = memory, .threads = threads});
      expect_same_files(directory / "wide", out);
    }
  }
}

TEST(Reshard, ToAnotherDimensionTakesMomentsAlongAndLeavesATiedWeightOnItsLast) {
  const TempDir directory;
  write_checkpoint(directory / "a", 2);
  reshard_checkpoint(
      directory / "a", directory / "b", {.ranks = 2, .shard_dim = ShardDimPolicy::kFirst, .dims = {{"frozen", -1}}});
  const Manifest manifest = open_manifest(directory / "b", Verify::kHashes);
  EXPECT_EQ(manifest.find("embed")->dim, 1);
  EXPECT_EQ(manifest.find("cube")->dim, 0);
  EXPECT_EQ(manifest.find("frozen")->dim, 1);
  EXPECT_EQ(manifest.find("scale")->dim, -1);
  const ShardedFiles files = ShardedFiles::open(directory / "b");
  EXPECT_EQ(files.find("embed.exp_avg")->cut, 1);
  EXPECT_EQ(files.find("cube.exp_avg_sq")->cut, 0);
  expect_same_tensors(directory / "b");
}

TEST(Reshard, RefusesDimensionsThatCannotBe) {
  const TempDir directory;
  write_checkpoint(directory / "a", 2);
  const auto refuse = [&](const std::map<std::string, int>& dims, Code code, const std::vector<std::string>& named) {
    expect_refusal<UsageError>(
        code, named, [&] { reshard_checkpoint(directory / "a", directory / "b", {.ranks = 2, .dims = dims}); });
    EXPECT_FALSE(fs::exists(directory / "b"));
  };
  refuse({{"embed", 0}}, Code::kTiedWeightOnVocab, {"embed", "[11, 6]"});
  refuse({{"head", 0}}, Code::kTiedWeightOnVocab, {"embed"});
  refuse({{"rows.exp_avg", 0}}, Code::kUnknownParameter, {"rows.exp_avg"});
  refuse({{"rows", 2}}, Code::kBadShardDim, {"rows", "[7, 3]"});
  refuse({{"scale", 0}}, Code::kBadShardDim, {"scale"});
  refuse({{"head", 1}, {"embed", -2}}, Code::kBadShardDim, {"embed"});
  expect_refusal<UsageError>(
      Code::kBadRankCount, {"0"}, [&] { reshard_checkpoint(directory / "a", directory / "b", {.ranks = 0}); });
}

TEST(Reshard, OfARunTakesItsNewestCheckpointAndOfDamagedFilesRefuses) {
  const TempDir directory;
  write_checkpoint(directory / "run" / "checkpoints" / "step-000000007", 2);
  reshard_checkpoint(directory / "run", directory / "b", {.ranks = 1});
  expect_same_tensors(directory / "b");
  const fs::path shard = directory / "b" / shard_file_name(0, 0, 1);
  std::string bytes = bytes_of_file(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  expect_refusal<InputError>(Code::kCheckpointIncomplete, {shard_file_name(0, 0, 1)}, [&] {
    reshard_checkpoint(directory / "b", directory / "c", {.ranks = 1, .verify = true});
  });
  fs::remove(shard);
  expect_refusal<InputError>(Code::kCheckpointIncomplete, {shard_file_name(0, 0, 1)}, [&] {
    reshard_checkpoint(directory / "b", directory / "c", {.ranks = 1});
  });
  EXPECT_FALSE(fs::exists(directory / "c"));
}

TEST(Reshard, RefusesFilesThatAreNotWhatTheManifestSays) {
  const TempDir directory;
  Manifest other = some_manifest();
  write_checkpoint(directory / "a", 1, other);
  other.parameters[2].shape = {7, 4};
  other.files = {record_of(directory / "a", shard_file_name(0, 0, 1))};
  other.mesh = {{.name = "dp_shard", .size = 1}};
  write_text_file(directory / "a" / "manifest.json", to_json(other));
  expect_refusal<InputError>(Code::kCheckpointIncomplete, {"rows", "[7, 4]", "[7, 3]"}, [&] {
    reshard_checkpoint(directory / "a", directory / "b", {.ranks = 1});
  });
  other.id = std::string(32, 'f');
  write_text_file(directory / "a" / "manifest.json", to_json(other));
  expect_refusal<InputError>(
      Code::kSavesMixed, {kId}, [&] { reshard_checkpoint(directory / "a", directory / "b", {.ranks = 1}); });
}

TEST(Reshard, WritesOverNothingAndLeavesNothingOfAFailure) {
  const TempDir directory;
  write_checkpoint(directory / "a", 2);
  directory.write("b", "mine");
  expect_refusal<InputError>(
      Code::kOutputExists, {"b"}, [&] { reshard_checkpoint(directory / "a", directory / "b", {.ranks = 1}); });
  const fs::path staging = directory / ".c.staging";
  fs::create_directories(staging / "left");
  {
    const DirectoryLock held = DirectoryLock::take_beside(directory / "c");
    expect_refusal<InputError>(Code::kDirectoryInUse, {".c.lock"}, [&] {
      reshard_checkpoint(directory / "a", directory / "c", {.ranks = 1});
    });
    EXPECT_TRUE(fs::exists(staging / "left"));
  }
  reshard_checkpoint(directory / "a", directory / "c", {.ranks = 1}); // what a killed job left is no obstacle
  EXPECT_FALSE(fs::exists(staging));
  EXPECT_FALSE(fs::exists(directory / "c" / "left"));
  EXPECT_FALSE(fs::exists(directory / "c" / ".lock"));
  EXPECT_FALSE(fs::exists(directory / ".c.lock"));
}

TEST(Reshard, OfAPlainDirectoryCutsOnTheLastDimensionAndCopiesWhatIsNoTensor) {
  const TempDir directory;
  fs::create_directories(directory / "hf");
  std::ofstream(directory / "hf" / kSingleFile, std::ios::binary)
      << packed("{" + entry("a", "U8", "[2,3]", "[0,6]") + "," + entry("packed", "F4", "[6]", "[6,9]") + "," +
                    entry("s", "I64", "[]", "[9,17]") + "}",
                "012345xyz12345678");
  std::ofstream(directory / "hf" / "config.json") << "{}";
  const ReshardReport report = reshard_checkpoint(directory / "hf", directory / "out", {.ranks = 2});
  EXPECT_EQ(report.tensors, 3);
  EXPECT_THAT(list_directory(directory / "out"),
              ::testing::ElementsAre("config.json", shard_file_name(0, 0, 1), shard_file_name(1, 0, 1)));
  const ShardedFiles files = ShardedFiles::open(directory / "out");
  EXPECT_EQ(files.find("a")->cut, 1);
  EXPECT_EQ(files.find("packed")->blocks.size(), 1U);
  std::string text(6, ' ');
  BoxReader(files).read(*files.find("a"), {{0, 0}, {2, 3}}, std::as_writable_bytes(std::span(text)).data());
  EXPECT_EQ(text, "012345");
  text.resize(3);
  BoxReader(files).read(*files.find("packed"), {{0}, {6}}, std::as_writable_bytes(std::span(text)).data());
  EXPECT_EQ(text, "xyz");
  expect_refusal<InputError>(Code::kNoCheckpoint, {"hf"}, [&] {
    reshard_checkpoint(directory / "hf", directory / "more", {.ranks = 2, .verify = true});
  });
}

TEST(Reshard, StatesNoShapeThatItsSourceDidNotState) {
  const TempDir directory;
  fs::create_directories(directory / "dcp");
  const auto write = [&](int rank) {
    std::ofstream(directory / "dcp" / dcp_name(rank), std::ios::binary)
        << sharded_file({{"w", {6, 2}, {2 * rank, 0}, {2, 2}}}); // and not the file of the third rank
  };
  write(0);
  write(1);
  const ReshardReport report = reshard_checkpoint(directory / "dcp", directory / "out", {.ranks = 2});
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].level, Level::kWarning);
  expect_names(report.findings[0], Code::kBlockMissing, {"dcp", "1 of 1", "--config-from"});
  EXPECT_FALSE(ShardedFiles::open(directory / "out").find("w")->stated);
  write_checkpoint(directory / "a", 2);
  EXPECT_TRUE(reshard_checkpoint(directory / "a", directory / "b", {.ranks = 3}).findings.empty());
  EXPECT_TRUE(ShardedFiles::open(directory / "b").find("embed")->stated);
}

TEST(Reshard, RefusesAnOutputWithoutANameOrAmongTheCheckpointsOfTheRun) {
  const TempDir directory;
  const fs::path run = directory / "run";
  const fs::path checkpoint = run / "checkpoints" / "step-000000007";
  write_checkpoint(checkpoint, 2);
  const auto expect_refused = [&](const fs::path& in, const fs::path& out) {
    expect_refusal<InputError>(Code::kBadFlag, {}, [&] { reshard_checkpoint(in, out, {.ranks = 1}); });
  };
  for (const char* out : {"", ".", "..", "/"}) {
    expect_refused(run, out);
  }
  expect_refused(run, run / "checkpoints" / "step-000000099");
  expect_refused(checkpoint, run / "other" / ".." / "checkpoints" / "new");
  expect_refused(checkpoint / "", checkpoint / "new");
  EXPECT_NO_THROW(reshard_checkpoint(run, run / "three", {.ranks = 3}));
}

TEST(Reshard, SaysHowFarItIs) {
  const TempDir directory;
  write_checkpoint(directory / "a", 2);
  std::vector<std::uint64_t> done;
  std::uint64_t whole = 0;
  reshard_checkpoint(
      directory / "a", directory / "b", {.ranks = 3, .on_progress = [&](std::uint64_t d, std::uint64_t t) {
                                           done.push_back(d);
                                           whole = t;
                                         }});
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.back(), whole);
}

} // namespace
} // namespace tieshard
