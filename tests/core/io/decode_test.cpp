#include "tieshard/core/io/decode.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/io/convert.h"

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/raised.h"

namespace tieshard {
namespace {

using testing::bytes_of;
using testing::CheckpointFixture;
using testing::FixtureTensor;
using testing::raised;

constexpr DType kTargets[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
constexpr std::uint64_t kSmallBuffer = 4096;
constexpr std::uint64_t kLargeBuffer = 1 << 20;

/// A parameter as the test itself computes it, and where its bytes lie.
struct Encoded {
  Encoding encoding;
  Shape shape;                ///< of the parameter
  std::vector<double> values; ///< of the parameter, row-major
  ScaleBlock block{};         ///< of kFp8
};

std::size_t count_of(const Shape& shape) {
  return static_cast<std::size_t>(numel(shape));
}

SliceRead slice_of(const Checkpoint& checkpoint, const Encoded& encoded, int dim, ChunkRange chunk) {
  const StoredTensor& stored = *checkpoint.find("w");
  SliceRead read{.fqn = "w",
                 .stored_name = "w",
                 .file = stored.file,
                 .offset = stored.offset,
                 .stored_dtype = stored.dtype,
                 .range = {},
                 .local_shape = encoded.shape,
                 .encoding = encoded.encoding,
                 .stored_shape = stored.shape,
                 .shape = encoded.shape,
                 .dim = dim,
                 .chunk = chunk};
  if (dim >= 0) {
    read.local_shape[static_cast<std::size_t>(dim)] = chunk.size;
  }
  if (const StoredTensor* const scales = checkpoint.find("s")) {
    read.scale = ScaleRead{.stored_name = "s",
                           .file = scales->file,
                           .offset = scales->offset,
                           .dtype = scales->dtype,
                           .shape = scales->shape,
                           .block = encoded.block};
  }
  return read;
}

/// The elements of the slice, by the definition of one.
std::vector<double> expected(const Encoded& encoded, int dim, ChunkRange chunk) {
  std::vector<double> result;
  std::size_t inner = 1;
  for (std::size_t d = static_cast<std::size_t>(dim) + 1; d < encoded.shape.size(); ++d) {
    inner *= static_cast<std::size_t>(encoded.shape[d]);
  }
  for (std::size_t i = 0; i < encoded.values.size(); ++i) {
    const std::int64_t at =
        dim < 0 ? 0 : static_cast<std::int64_t>(i / inner) % encoded.shape[static_cast<std::size_t>(dim)];
    if (dim < 0 || (at >= chunk.offset && at < chunk.offset + chunk.size)) {
      result.push_back(encoded.values[i]);
    }
  }
  return result;
}

std::vector<std::byte> as_dtype(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(bits(dtype)) / 8);
  convert(reinterpret_cast<const std::byte*>(values.data()), DType::kF64, bytes.data(), dtype, values.size());
  return bytes;
}

std::vector<std::byte> decoded(const Checkpoint& checkpoint,
                               const SliceRead& read,
                               DType target,
                               std::uint64_t buffer) {
  std::vector<std::byte> memory(count_of(read.local_shape) * static_cast<std::size_t>(bits(target)) / 8 + 1,
                                std::byte{0xEE});
  read_encoded(checkpoint, read, memory.data(), target, buffer);
  EXPECT_EQ(memory.back(), std::byte{0xEE}) << "wrote past the end";
  memory.pop_back();
  return memory;
}

/// Every dimension, every target, a small and a large buffer.
void expect_every_slice(const CheckpointFixture& fixture, const Encoded& encoded, std::int64_t most_ranks = 5) {
  const Checkpoint checkpoint = fixture.open();
  for (int dim = -1; dim < static_cast<int>(encoded.shape.size()); ++dim) {
    for (std::int64_t ranks = 1; ranks <= (dim < 0 ? 1 : most_ranks); ++ranks) {
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const ChunkRange chunk =
            dim < 0 ? ChunkRange{0, 1} : chunk_range(encoded.shape[static_cast<std::size_t>(dim)], ranks, rank);
        const SliceRead read = slice_of(checkpoint, encoded, dim, chunk);
        const std::vector<double> values = expected(encoded, dim, chunk);
        for (const DType target : kTargets) {
          for (const std::uint64_t buffer : {kSmallBuffer, kLargeBuffer}) {
            ASSERT_TRUE(decoded(checkpoint, read, target, buffer) == as_dtype(values, target))
                << to_string(encoded.shape) << " dim " << dim << " rank " << rank << " of " << ranks << " "
                << name(target) << " buffer " << buffer;
          }
        }
      }
    }
  }
}

// --- Transposed.

Encoded write_transposed(CheckpointFixture& fixture, const Shape& shape, DType dtype) {
  Shape stored_shape = shape;
  std::swap(stored_shape[shape.size() - 1], stored_shape[shape.size() - 2]);
  const std::size_t rows = static_cast<std::size_t>(shape[shape.size() - 2]);
  const std::size_t columns = static_cast<std::size_t>(shape.back());
  std::vector<double> stored(count_of(shape));
  std::vector<double> values(stored.size());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    stored[i] = static_cast<double>(i % 2039) - 1000.0; // exact in F16
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t matrix = i / (rows * columns);
    const std::size_t row = i / columns % rows;
    values[i] = stored[matrix * rows * columns + i % columns * rows + row];
  }
  if (dtype == DType::kBF16) { // what BF16 holds of them
    std::vector<double> rounded(values.size());
    const auto bytes = as_dtype(values, dtype);
    convert(bytes.data(), dtype, reinterpret_cast<std::byte*>(rounded.data()), DType::kF64, values.size());
    values = rounded;
  }
  fixture.write({{.name = "w", .dtype = dtype, .shape = stored_shape, .bytes = as_dtype(stored, dtype)}});
  return {.encoding = Encoding::kTransposed, .shape = shape, .values = values};
}

TEST(DecodeTransposed, GivesEverySliceOfEveryShape) {
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 7}, Shape{70, 33}, Shape{3, 17, 66}, Shape{2, 3, 5, 4}}) {
    for (const DType dtype : kTargets) {
      CheckpointFixture fixture;
      expect_every_slice(fixture, write_transposed(fixture, shape, dtype));
    }
  }
}

TEST(DecodeTransposed, ReadsEachByteOfAStripOnce) {
  CheckpointFixture fixture;
  const Encoded encoded =
      write_transposed(fixture, {4096, 130}, DType::kF32); // stored [130, 4096]: strips lie far apart
  const Checkpoint checkpoint = fixture.open();
  std::vector<std::byte> target(1024 * 130 * 4);
  const SliceRead read = slice_of(checkpoint, encoded, 0, {1024, 1024});
  EXPECT_EQ(read_encoded(checkpoint, read, target.data(), DType::kF32, kSmallBuffer), target.size());
}

// --- FP8.

float scale_at(std::size_t index) {
  return 0.0375F + static_cast<float>(index) * 0.311F;
}

struct ScaleLayout {
  Shape shape;
  ScaleBlock block;
};

/// Every finite pattern, in an order that differs from row to row.
Encoded write_fp8(CheckpointFixture& fixture, const Shape& shape, DType dtype, const ScaleLayout& scale) {
  const std::int64_t rows = shape.size() < 2 ? 1 : shape[shape.size() - 2];
  const std::int64_t columns = shape.empty() ? 1 : shape.back();
  const std::int64_t grid_rows = (rows + scale.block.rows - 1) / scale.block.rows;
  const std::int64_t grid_columns = (columns + scale.block.columns - 1) / scale.block.columns;
  std::vector<std::uint8_t> patterns(count_of(shape));
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = static_cast<std::uint8_t>(i * 37 % 0x7B + (i % 3 == 0 ? 0x80 : 0));
    patterns[i] = patterns[i] == 0x80 ? 0x01 : patterns[i]; // FNUZ has a NaN there
  }
  std::vector<float> singles(patterns.size());
  convert(reinterpret_cast<const std::byte*>(patterns.data()),
          dtype,
          reinterpret_cast<std::byte*>(singles.data()),
          DType::kF32,
          singles.size());
  std::vector<float> scales(count_of(scale.shape));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = scale_at(i);
  }
  std::vector<double> values(patterns.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i);
    const std::int64_t row = at / columns % rows;
    const std::int64_t cell = row / scale.block.rows * grid_columns + at % columns / scale.block.columns;
    const std::int64_t matrix = at / (rows * columns);
    const bool one_grid = numel(scale.shape) == grid_rows * grid_columns;
    const float product =
        singles[i] * scales[static_cast<std::size_t>((one_grid ? 0 : matrix * grid_rows * grid_columns) + cell)];
    values[i] = static_cast<double>(product);
  }
  fixture.write({{.name = "w", .dtype = dtype, .shape = shape, .bytes = bytes_of(patterns)},
                 {.name = "s", .dtype = DType::kF32, .shape = scale.shape, .bytes = bytes_of(scales)}});
  return {.encoding = Encoding::kFp8, .shape = shape, .values = values, .block = scale.block};
}

TEST(DecodeFp8, GivesEverySliceWithEveryLayoutOfScales) {
  const ScaleLayout layouts[] = {{{}, {11, 13}},      // one for the tensor
                                 {{1}, {11, 13}},     //
                                 {{11, 1}, {1, 13}},  // one a row
                                 {{3, 3}, {5, 5}},    // blocks, uneven at both edges
                                 {{11, 13}, {1, 1}}}; // one an element
  for (const ScaleLayout& layout : layouts) {
    CheckpointFixture fixture;
    expect_every_slice(fixture, write_fp8(fixture, {11, 13}, DType::kF8E4M3, layout));
  }
}

TEST(DecodeFp8, TakesEveryKindOfFp8) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz}) {
    CheckpointFixture fixture;
    expect_every_slice(fixture, write_fp8(fixture, {7, 9}, dtype, {{2, 3}, {4, 4}}));
  }
}

TEST(DecodeFp8, TakesVectorsAndStacksOfMatrices) {
  CheckpointFixture vector;
  expect_every_slice(vector, write_fp8(vector, {33}, DType::kF8E4M3, {{}, {1, 33}}));
  CheckpointFixture stack;
  expect_every_slice(stack, write_fp8(stack, {3, 6, 5}, DType::kF8E4M3, {{3, 3, 2}, {2, 3}}));
  CheckpointFixture deep;
  expect_every_slice(deep, write_fp8(deep, {2, 3, 4, 5}, DType::kF8E4M3, {{2, 3, 1, 1}, {4, 5}}));
}

TEST(DecodeFp8, CutsAMatrixThatIsLargerThanTheBuffer) {
  CheckpointFixture fixture;
  expect_every_slice(fixture, write_fp8(fixture, {70, 4200}, DType::kF8E4M3, {{1, 33}, {128, 128}}), 2);
}

TEST(DecodeFp8, ReadsScalesOfEveryDtype) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E8M0, DType::kU8}) {
    CheckpointFixture fixture;
    const bool exponent = dtype == DType::kF8E8M0 || dtype == DType::kU8;
    const std::vector<std::byte> scale =
        exponent ? bytes_of(std::vector<std::uint8_t>{130}) : as_dtype(std::vector<double>{8.0}, dtype);
    fixture.write({{.name = "w", .dtype = DType::kF8E4M3, .shape = {2}, .bytes = bytes_of<std::uint8_t>({0x38, 0xB8})},
                   {.name = "s", .dtype = dtype, .shape = {1}, .bytes = scale}});
    const Encoded encoded{.encoding = Encoding::kFp8, .shape = {2}, .values = {8.0, -8.0}, .block = {1, 2}};
    expect_every_slice(fixture, encoded);
  }
}

// --- MXFP4.

constexpr double kE2m1[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};

/// `shape` is the parameter's: [..., in, out].
Encoded write_mxfp4(CheckpointFixture& fixture, const Shape& shape, std::uint8_t lowest, std::uint8_t highest) {
  const std::size_t in = static_cast<std::size_t>(shape[shape.size() - 2]);
  const std::size_t out = static_cast<std::size_t>(shape.back());
  Shape block_shape = shape;
  block_shape[shape.size() - 2] = shape.back();
  block_shape.back() = static_cast<std::int64_t>(in / 32);
  const Shape scale_shape = block_shape;
  block_shape.push_back(16);
  std::mt19937 random(3);
  std::vector<std::uint8_t> blocks(count_of(block_shape));
  std::vector<std::uint8_t> scales(count_of(scale_shape));
  for (std::uint8_t& block : blocks) {
    block = static_cast<std::uint8_t>(random());
  }
  for (std::uint8_t& scale : scales) {
    scale = static_cast<std::uint8_t>(lowest + random() % (1U + highest - lowest));
  }
  std::fill_n(blocks.begin(), 16, std::uint8_t{0}); // a group of zeros has scale 0
  scales[0] = 0;
  std::vector<double> values(count_of(shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t row = i / (in * out) * out + i % out; // of the stored rows
    const std::size_t input = i / out % in;
    const std::size_t group = row * (in / 32) + input / 32;
    const std::uint8_t byte = blocks[group * 16 + input % 32 / 2];
    const int nibble = input % 2 == 0 ? byte & 15 : byte >> 4;
    values[i] = kE2m1[nibble] * std::ldexp(1.0, scales[group] - 127);
  }
  fixture.write({{.name = "w", .dtype = DType::kU8, .shape = block_shape, .bytes = bytes_of(blocks)},
                 {.name = "s", .dtype = DType::kU8, .shape = scale_shape, .bytes = bytes_of(scales)}});
  return {.encoding = Encoding::kMxfp4, .shape = shape, .values = values};
}

TEST(DecodeMxfp4, GivesEverySliceAlsoInsideAGroupAndInsideAByte) {
  for (const Shape& shape : {Shape{32, 3}, Shape{2, 96, 70}, Shape{5, 64, 1}, Shape{3, 2, 32, 5}}) {
    CheckpointFixture fixture;
    expect_every_slice(fixture, write_mxfp4(fixture, shape, 120, 133));
  }
}

TEST(DecodeMxfp4, CutsRowsThatAreLargerThanTheBuffer) {
  CheckpointFixture fixture;
  expect_every_slice(fixture, write_mxfp4(fixture, {9216, 66}, 118, 130), 2); // a stored row has 4.5 KiB
}

TEST(DecodeMxfp4, GoesToTheEndsOfEachDtype) {
  CheckpointFixture fixture;
  expect_every_slice(fixture, write_mxfp4(fixture, {2, 64, 40}, 0, 255));
}

TEST(DecodeMxfp4, OverflowsOnlyWhereTheValueDoes) {
  CheckpointFixture fixture;
  std::vector<std::uint8_t> blocks(32, 0x71); // 0.5 and 6
  blocks[1] = 0x80;                           // 0 and -0
  fixture.write({{.name = "w", .dtype = DType::kU8, .shape = {2, 1, 16}, .bytes = bytes_of(blocks)},
                 {.name = "s", .dtype = DType::kU8, .shape = {2, 1}, .bytes = bytes_of<std::uint8_t>({255, 254})}});
  const Checkpoint checkpoint = fixture.open();
  const Encoded encoded{.encoding = Encoding::kMxfp4, .shape = {32, 2}, .values = {}};
  const SliceRead read = slice_of(checkpoint, encoded, -1, {0, 1});
  std::vector<float> values(64);
  read_encoded(checkpoint, read, reinterpret_cast<std::byte*>(values.data()), DType::kF32, kLargeBuffer);
  EXPECT_EQ(values[0], std::ldexp(0.5F, 128)); // the scale alone would be infinite
  EXPECT_EQ(values[1], std::ldexp(0.5F, 127));
  EXPECT_EQ(values[2], INFINITY); // 6 * 2^128
  EXPECT_EQ(values[3], INFINITY); // 6 * 2^127
  EXPECT_TRUE(values[4] == 0.0F && !std::signbit(values[4]));
  EXPECT_TRUE(values[6] == 0.0F && std::signbit(values[6])); // a negative zero stays one
  std::vector<double> wide(64);
  read_encoded(checkpoint, read, reinterpret_cast<std::byte*>(wide.data()), DType::kF64, kLargeBuffer);
  EXPECT_EQ(wide[2], std::ldexp(6.0, 128));
}

// --- Pieces.

TEST(CutEncoded, MakesPiecesThatThreadsMayTakeInAnyOrder) {
  CheckpointFixture fixture;
  const Encoded encoded = write_mxfp4(fixture, {3, 160, 200}, 120, 130);
  const Checkpoint checkpoint = fixture.open();
  const SliceRead read = slice_of(checkpoint, encoded, 1, {7, 100});
  const std::vector<DecodePiece> pieces = cut_encoded(read, kSmallBuffer);
  ASSERT_GT(pieces.size(), 6U);
  std::vector<std::byte> target(3 * 100 * 200 * 2);
  std::vector<std::jthread> threads;
  for (std::size_t first = 0; first < 3; ++first) {
    threads.emplace_back([&, first] {
      std::vector<std::byte> buffer;
      for (std::size_t i = first; i < pieces.size(); i += 3) {
        decode_piece(checkpoint, read, pieces[pieces.size() - 1 - i], target.data(), DType::kBF16, buffer);
        EXPECT_LE(buffer.size(), 2 * kSmallBuffer);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(target, as_dtype(expected(encoded, 1, {7, 100}), DType::kBF16));
}

TEST(CutEncoded, MakesNoneOfAnEmptySlice) {
  CheckpointFixture fixture;
  const Encoded encoded = write_mxfp4(fixture, {2, 32, 8}, 120, 130);
  const Checkpoint checkpoint = fixture.open();
  for (int dim = 0; dim < 3; ++dim) {
    const std::int64_t size = encoded.shape[static_cast<std::size_t>(dim)];
    EXPECT_TRUE(cut_encoded(slice_of(checkpoint, encoded, dim, {size, 0}), kSmallBuffer).empty()) << dim;
  }
}

TEST(DecodePiece, RefusesATargetThatIsNoWideFloat) {
  CheckpointFixture fixture;
  const Encoded encoded = write_mxfp4(fixture, {32, 1}, 120, 130);
  const Checkpoint checkpoint = fixture.open();
  std::vector<std::byte> target(32);
  const auto refused = raised<UsageError>([&] {
    read_encoded(checkpoint, slice_of(checkpoint, encoded, -1, {0, 1}), target.data(), DType::kI8, kSmallBuffer);
  });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kNotConvertible);
}

} // namespace
} // namespace tieshard
