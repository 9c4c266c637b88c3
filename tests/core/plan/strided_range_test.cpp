#include "tieshard/core/plan/strided_range.h"

#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/support/raised.h"

namespace tieshard {
namespace {

using testing::raised;

/// The bytes of a slice element by element, from the definition of row-major order: no shared arithmetic.
std::vector<std::uint64_t> bytes_of_slice(const Shape& shape, std::uint64_t item, int dim, ChunkRange range) {
  std::vector<std::uint64_t> result;
  const std::int64_t total = numel(shape);
  for (std::int64_t element = 0; element < total; ++element) {
    std::int64_t rest = element;
    std::int64_t index = 0;
    for (int at = static_cast<int>(shape.size()) - 1; at >= dim; --at) {
      index = rest % shape[static_cast<std::size_t>(at)];
      rest /= shape[static_cast<std::size_t>(at)];
    }
    if (dim == -1 || (index >= range.offset && index < range.offset + range.size)) {
      for (std::uint64_t byte = 0; byte < item; ++byte) {
        result.push_back(static_cast<std::uint64_t>(element) * item + byte);
      }
    }
  }
  return result;
}

std::vector<std::uint64_t> bytes_of(const StridedRange& range) {
  std::vector<std::uint64_t> result;
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    for (std::uint64_t byte = 0; byte < range.row_bytes; ++byte) {
      result.push_back(range.first + row * range.stride + byte);
    }
  }
  return result;
}

TEST(StridedRange, NamesTheBytesOfEverySliceOfRandomTensors) {
  std::mt19937 random(20240607);
  for (int round = 0; round < 300; ++round) {
    Shape shape(1 + random() % 4);
    for (std::int64_t& size : shape) {
      size = static_cast<std::int64_t>(random() % 6); // 0 included
    }
    const DType dtype = std::vector{DType::kU8, DType::kBF16, DType::kF32, DType::kF64}[random() % 4];
    const std::uint64_t item = static_cast<std::uint64_t>(bits(dtype)) / 8;
    for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
      const std::int64_t size = shape[static_cast<std::size_t>(dim)];
      for (std::int64_t count = 1; count <= 5; ++count) {
        for (std::int64_t rank = 0; rank < count; ++rank) {
          const ChunkRange range = chunk_range(size, count, rank);
          const StridedRange strided = strided_range(shape, dtype, dim, range);
          EXPECT_EQ(bytes_of(strided), bytes_of_slice(shape, item, dim, range))
              << to_string(shape) << " dim " << dim << " rank " << rank << " of " << count;
        }
      }
    }
  }
}

TEST(StridedRange, OfTheFirstDimensionIsOneRun) {
  EXPECT_EQ(strided_range({6, 4}, DType::kF32, 0, {2, 2}), (StridedRange{32, 1, 32, 32}));
}

TEST(StridedRange, OfTheLastDimensionHasOneRowForEachRow) {
  EXPECT_EQ(strided_range({3, 8}, DType::kBF16, 1, {2, 3}), (StridedRange{4, 3, 6, 16}));
}

TEST(StridedRange, JoinsRowsThatTouch) {
  EXPECT_EQ(strided_range({3, 8}, DType::kBF16, 1, {0, 8}), (StridedRange{0, 1, 48, 48}));
  EXPECT_TRUE(strided_range({1, 8}, DType::kBF16, 1, {3, 2}).contiguous());
}

TEST(StridedRange, OfAScalarIsTheWholeOfIt) {
  EXPECT_EQ(strided_range({}, DType::kF32, -1, {0, 1}), (StridedRange{0, 1, 4, 4}));
}

TEST(StridedRange, HoldsSizesAboveFourGigabytes) {
  const std::int64_t rows = 1LL << 31;
  EXPECT_EQ(strided_range({rows, 8}, DType::kF32, 1, {4, 4}),
            (StridedRange{16, static_cast<std::uint64_t>(rows), 16, 32}));
  EXPECT_EQ(strided_range({rows, 8}, DType::kF32, 0, {rows - 1, 1}).first, (1ULL << 36) - 32);
}

TEST(StridedRange, CutsPackedElementsAtWholeBytesOnly) {
  EXPECT_EQ(strided_range({2, 8}, DType::kF4, 1, {2, 4}), (StridedRange{1, 2, 2, 4}));
  const auto refused = raised<UsageError>([] { strided_range({2, 8}, DType::kF4, 1, {1, 4}); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kBadSlice);
}

TEST(StridedRange, RefusesWhatLiesOutside) {
  for (const auto& [dim, range] : std::vector<std::pair<int, ChunkRange>>{
           {2, {0, 1}}, {-2, {0, 1}}, {0, {3, 1}}, {0, {2, 2}}, {1, {-1, 2}}, {1, {0, -1}}, {1, {1, INT64_MAX}}}) {
    const auto refused = raised<UsageError>([&] { strided_range({3, 4}, DType::kF32, dim, range); });
    ASSERT_TRUE(refused.has_value()) << dim << ": " << range.offset << ", " << range.size;
    EXPECT_EQ(refused->code, Code::kBadSlice);
  }
}

} // namespace
} // namespace tieshard
