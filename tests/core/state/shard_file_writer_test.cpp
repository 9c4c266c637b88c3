#include "tieshard/core/state/shard_file_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/checkpoint/safetensors_file.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

TEST(ShardFile, HoldsEachBlockUnderItsNameAndEmptyOnesToo) {
  const TempDir directory;
  const std::vector<float> weights = {1, 2, 3, 4};
  const std::vector<std::int64_t> steps = {9};
  const std::vector<BlockInMemory> blocks = {
      {block_of("w", DType::kF32, {4, 2}, 0, {.offset = 2, .size = 2}),
       reinterpret_cast<const std::byte*>(weights.data())},
      {block_of("none", DType::kF32, {1, 2}, 0, {.offset = 1, .size = 0}), nullptr},
      {block_of("step", DType::kI64, {}, -1, {}), reinterpret_cast<const std::byte*>(steps.data())}};
  const std::string name = shard_file_name(1, 0, 1);
  const FileRecord record = write_shard_file(directory.path(), name, blocks, "ab");
  EXPECT_EQ(record.name, name);
  EXPECT_EQ(record.bytes, shard_file_bytes(blocks, "ab"));
  EXPECT_EQ(record, record_of(directory.path(), name));

  const SafetensorsFile file = SafetensorsFile::open(directory / name);
  EXPECT_EQ(file.size(), record.bytes);
  std::vector<float> read(4);
  const TensorEntry& entry = *file.find("w");
  file.file().read_at(file.header().data_start + entry.begin, std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, weights);
  EXPECT_THAT(file.find("none")->shape, testing::ElementsAre(0, 2));
  std::int64_t step = 0;
  file.file().read_at(file.header().data_start + file.find("step")->begin, std::as_writable_bytes(std::span(&step, 1)));
  EXPECT_EQ(step, 9);
}

TEST(ShardFile, OfNoBlocksIsAFile) {
  const TempDir directory;
  write_shard_file(directory.path(), "empty.safetensors", {}, "ab");
  EXPECT_TRUE(SafetensorsFile::open(directory / "empty.safetensors").header().tensors.empty());
}

TEST(ShardFile, InADirectoryThatIsNotThereFails) {
  const TempDir directory;
  expect_refusal<PeerError>(
      Code::kIoFailed, {"none"}, [&] { write_shard_file(directory / "none", "f.safetensors", {}, "ab"); });
}

} // namespace
} // namespace tieshard
