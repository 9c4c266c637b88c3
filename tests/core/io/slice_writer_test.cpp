#include "tieshard/core/io/slice_writer.h"

#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/reader.h"

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/raised.h"

namespace tieshard {
namespace {

using testing::CheckpointFixture;
using testing::raised;

constexpr DType kWide[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

/// Random numbers that each of the four formats can hold, so that no dtype on the way loses any.
std::vector<float> random_values(std::mt19937& random, std::size_t count) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(static_cast<int>(random() % 255) - 127) / 16.0F;
  }
  return values;
}

std::vector<std::byte> as(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(bits(dtype)) / 8);
  convert(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, bytes.data(), dtype, values.size());
  return bytes;
}

/// A checkpoint with one tensor whose bytes are all 0xEE, and its file opened for writing.
struct Target {
  Target(const Shape& shape, DType dtype) {
    const std::size_t size = static_cast<std::size_t>(numel(shape)) * static_cast<std::size_t>(bits(dtype)) / 8;
    fixture.write({{"t", dtype, shape, std::vector<std::byte>(size, std::byte{0xEE})}});
  }
  File open() const {
    return File::open_for_writing(fixture.path() / "model.safetensors");
  }
  CheckpointFixture fixture;
};

/// Reads the whole tensor, or a slice of it, through the reader.
std::vector<std::byte> read_back(const Checkpoint& checkpoint, const StridedRange& range, Shape local, DType dtype) {
  const StoredTensor& tensor = checkpoint.tensors()[0];
  const SliceRead read{.fqn = "t",
                       .stored_name = "t",
                       .file = 0,
                       .offset = tensor.offset,
                       .stored_dtype = tensor.dtype,
                       .range = range,
                       .local_shape = local};
  std::vector<std::byte> memory(static_cast<std::size_t>(numel(local)) * static_cast<std::size_t>(bits(dtype)) / 8);
  const ReadTarget target{.data = memory.data(), .dtype = dtype};
  read_slices(checkpoint, std::span(&read, 1), std::span(&target, 1));
  return memory;
}

TEST(WriteSlice, ThenReadGivesTheNumbersBackInEveryPairOfDtypes) {
  std::mt19937 random(21);
  for (DType memory : kWide) {
    for (DType stored : kWide) {
      for (int dim = 0; dim < 3; ++dim) {
        const Shape shape = {3, 7, 5};
        const Target target(shape, stored);
        const Checkpoint checkpoint = target.fixture.open();
        const File file = target.open();
        std::vector<std::pair<Shape, std::vector<float>>> parts;
        for (std::int64_t rank = 0; rank < 4; ++rank) {
          const ChunkRange range = chunk_range(shape[static_cast<std::size_t>(dim)], 4, rank);
          Shape local = shape;
          local[static_cast<std::size_t>(dim)] = range.size;
          parts.emplace_back(local, random_values(random, static_cast<std::size_t>(numel(local))));
          write_slice(file,
                      checkpoint.tensors()[0].offset,
                      strided_range(shape, stored, dim, range),
                      stored,
                      as(memory, parts.back().second).data(),
                      memory);
        }
        for (std::int64_t rank = 0; rank < 4; ++rank) { // after all have written: no rank spoilt another's part
          const ChunkRange range = chunk_range(shape[static_cast<std::size_t>(dim)], 4, rank);
          const auto& [local, values] = parts[static_cast<std::size_t>(rank)];
          EXPECT_EQ(read_back(checkpoint, strided_range(shape, stored, dim, range), local, memory), as(memory, values))
              << name(memory) << " to " << name(stored) << ", dim " << dim << ", rank " << rank;
        }
      }
    }
  }
}

TEST(WriteSlice, TouchesItsOwnBytesOnly) {
  const Shape shape = {4, 6};
  const Target target(shape, DType::kBF16);
  const Checkpoint checkpoint = target.fixture.open();
  const std::vector<float> ones(8, 1.0F);
  write_slice(target.open(),
              checkpoint.tensors()[0].offset,
              strided_range(shape, DType::kBF16, 1, {2, 2}),
              DType::kBF16,
              reinterpret_cast<const std::byte*>(ones.data()),
              DType::kF32);
  const auto whole = read_back(checkpoint, strided_range(shape, DType::kBF16, -1, {}), shape, DType::kBF16);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const std::size_t column = i / 2 % 6;
    const std::byte expected =
        column == 2 || column == 3 ? (i % 2 == 0 ? std::byte{0x80} : std::byte{0x3F}) : std::byte{0xEE};
    EXPECT_EQ(whole[i], expected) << "byte " << i;
  }
}

TEST(WriteSlice, GoesThroughItsBufferForLargeSlices) {
  std::mt19937 random(22);
  // One run of 12 MB, rows of 6 MB each, and many rows that share a buffer.
  for (const auto& [shape, dim, range] : std::vector<std::tuple<Shape, int, ChunkRange>>{
           {{3'000'000}, -1, {}}, {{2, 1'600'000}, 1, {7, 1'500'000}}, {{3000, 600}, 1, {100, 400}}}) {
    const Target target(shape, DType::kF32);
    const Checkpoint checkpoint = target.fixture.open();
    Shape local = shape;
    if (dim >= 0) {
      local[static_cast<std::size_t>(dim)] = range.size;
    }
    const auto values = random_values(random, static_cast<std::size_t>(numel(local)));
    const StridedRange rows = strided_range(shape, DType::kF32, dim, range);
    write_slice(target.open(),
                checkpoint.tensors()[0].offset,
                rows,
                DType::kF32,
                as(DType::kBF16, values).data(),
                DType::kBF16);
    EXPECT_TRUE(read_back(checkpoint, rows, local, DType::kF32) == as(DType::kF32, values)) << to_string(shape);
  }
}

TEST(WriteSlice, OfAnEmptySliceWritesNothing) {
  const Target target({4, 2}, DType::kF32);
  write_slice(target.open(), 0, strided_range({4, 2}, DType::kF32, 1, {2, 0}), DType::kF32, nullptr, DType::kF64);
  const Checkpoint checkpoint = target.fixture.open(); // the header at byte 0 is still one
  EXPECT_EQ(checkpoint.tensors().size(), 1U);
}

TEST(WriteSlice, RefusesWhatItCannotConvert) {
  const Target target({4}, DType::kF32);
  const std::vector<std::byte> memory(32);
  const auto refused = raised<UsageError>([&] {
    write_slice(target.open(), 0, strided_range({4}, DType::kF32, 0, {0, 4}), DType::kF32, memory.data(), DType::kI64);
  });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kNotConvertible);
}

} // namespace
} // namespace tieshard
