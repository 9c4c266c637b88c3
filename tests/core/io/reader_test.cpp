#include "tieshard/core/io/reader.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>
#include <set>
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
using testing::counting;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using testing::raised;

/// The slice of a stored tensor along `dim`.
SliceRead slice_of(const StoredTensor& tensor, int dim, ChunkRange range) {
  Shape local = tensor.shape;
  if (dim >= 0) {
    local[static_cast<std::size_t>(dim)] = range.size;
  }
  return {.fqn = tensor.name,
          .stored_name = tensor.name,
          .file = tensor.file,
          .offset = tensor.offset,
          .stored_dtype = tensor.dtype,
          .range = strided_range(tensor.shape, tensor.dtype, dim, range),
          .local_shape = local};
}

std::uint64_t bytes_in(const SliceRead& read, DType dtype) {
  return static_cast<std::uint64_t>(numel(read.local_shape)) * static_cast<std::uint64_t>(bits(dtype)) / 8;
}

std::vector<std::byte> read_one(const Checkpoint& checkpoint,
                                const SliceRead& read,
                                DType dtype,
                                const ReaderOptions& options = {}) {
  std::vector<std::byte> memory(bytes_in(read, dtype), std::byte{0xEE});
  const ReadTarget target{.data = memory.data(), .dtype = dtype};
  read_slices(checkpoint, std::span(&read, 1), std::span(&target, 1), options);
  return memory;
}

FixtureTensor random_tensor(std::mt19937& random, const std::string& name, const Shape& shape, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(numel(shape)));
  for (float& value : values) {
    value = std::uniform_real_distribution<float>(-4.0F, 4.0F)(random);
  }
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(bits(dtype)) / 8);
  convert(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, bytes.data(), dtype, values.size());
  return {.name = name, .dtype = dtype, .shape = shape, .bytes = std::move(bytes)};
}

/// Puts the parts of all ranks together again, element by element, from the definition of a slice.
std::vector<std::byte> concatenated(const Shape& shape,
                                    int dim,
                                    std::uint64_t item,
                                    const std::vector<std::vector<std::byte>>& parts) {
  std::vector<std::byte> whole;
  std::vector<std::uint64_t> taken(parts.size(), 0);
  const std::size_t at = static_cast<std::size_t>(dim);
  std::uint64_t outer = 1;
  std::uint64_t inner = item;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    (d < at ? outer : inner) *= d == at ? 1 : static_cast<std::uint64_t>(shape[d]);
  }
  for (std::uint64_t row = 0; row < outer; ++row) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const ChunkRange range =
          chunk_range(shape[at], static_cast<std::int64_t>(parts.size()), static_cast<std::int64_t>(rank));
      const auto begin = parts[rank].begin() + static_cast<std::ptrdiff_t>(taken[rank]);
      whole.insert(
          whole.end(), begin, begin + static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(range.size) * inner));
      taken[rank] += static_cast<std::uint64_t>(range.size) * inner;
    }
  }
  return whole;
}

TEST(ReadSlices, OfAllRanksConcatenateToTheWholeTensor) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    Shape shape(1 + random() % 4);
    for (std::int64_t& size : shape) {
      size = static_cast<std::int64_t>(1 + random() % 9);
    }
    const DType dtype = std::vector{DType::kU8, DType::kBF16, DType::kF32, DType::kF64}[random() % 4];
    FixtureTensor tensor{"t", dtype, shape, {}};
    tensor.bytes.resize(static_cast<std::size_t>(numel(shape)) * static_cast<std::size_t>(bits(dtype)) / 8);
    std::ranges::generate(tensor.bytes, [&random] { return static_cast<std::byte>(random()); });
    CheckpointFixture fixture;
    fixture.write({tensor});
    const Checkpoint checkpoint = fixture.open();
    for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
      for (std::int64_t ranks = 1; ranks <= 5; ++ranks) {
        std::vector<std::vector<std::byte>> parts;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const ChunkRange range = chunk_range(shape[static_cast<std::size_t>(dim)], ranks, rank);
          parts.push_back(read_one(checkpoint, slice_of(checkpoint.tensors()[0], dim, range), dtype));
        }
        EXPECT_EQ(concatenated(shape, dim, static_cast<std::uint64_t>(bits(dtype)) / 8, parts), tensor.bytes)
            << to_string(shape) << " dim " << dim << " ranks " << ranks;
      }
    }
  }
}

TEST(ReadSlices, ConvertsEveryPairOfWideFloats) {
  std::mt19937 random(12);
  const DType wide[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
  std::vector<FixtureTensor> tensors;
  for (DType dtype : wide) {
    tensors.push_back(random_tensor(random, std::string(name(dtype)), {5, 6}, dtype));
  }
  CheckpointFixture fixture;
  fixture.write(tensors);
  const Checkpoint checkpoint = fixture.open();
  for (const FixtureTensor& tensor : tensors) {
    for (DType to : wide) {
      const std::size_t to_bytes = static_cast<std::size_t>(bits(to)) / 8;
      std::vector<std::byte> whole(30 * to_bytes);
      convert(tensor.bytes.data(), tensor.dtype, whole.data(), to, 30);
      std::vector<std::byte> expected; // columns 2 and 3 of each row
      for (std::size_t row = 0; row < 5; ++row) {
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>((row * 6 + 2) * to_bytes);
        expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(2 * to_bytes));
      }
      EXPECT_EQ(read_one(checkpoint, slice_of(*checkpoint.find(tensor.name), 1, {2, 2}), to), expected)
          << name(tensor.dtype) << " to " << name(to);
    }
  }
}

/// Shapes that take every path: one run, rows with small gaps, rows with large gaps, a row longer than the buffer.
struct PathCase {
  Shape shape;
  int dim;
  ChunkRange range;
};

const PathCase kPaths[] = {
    {{700, 1000}, 0, {100, 500}},   // one run of 2 MB
    {{700, 1000}, 1, {300, 500}},   // rows of 2000 bytes, gaps of 2000: read together
    {{60, 20000}, 1, {5000, 9000}}, // gaps of 44 kB: row by row
    {{3, 600000}, 1, {1, 400000}},  // rows of 1.6 MB: in pieces
    {{3, 600000}, 1, {1, 599500}},  // the same with gaps of 2000 bytes
};

TEST(ReadSlices, GivesTheSameForEveryBufferThreadCountAndPath) {
  for (const PathCase& path : kPaths) {
    const FixtureTensor tensor = counting("t", path.shape);
    CheckpointFixture fixture;
    fixture.write({tensor});
    const Checkpoint checkpoint = fixture.open();
    const SliceRead read = slice_of(checkpoint.tensors()[0], path.dim, path.range);
    std::vector<std::byte> expected;
    for (std::uint64_t row = 0; row < read.range.rows; ++row) {
      const auto begin = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(read.range.first + row * read.range.stride);
      expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(read.range.row_bytes));
    }
    std::vector<std::byte> expected_double(expected.size() * 2);
    convert(expected.data(), DType::kF32, expected_double.data(), DType::kF64, expected.size() / 4);
    for (std::uint64_t buffer :
         {std::uint64_t{0}, std::uint64_t{5000}, std::uint64_t{300'000}, std::uint64_t{16 << 20}}) {
      for (int threads : {1, 3}) {
        const ReaderOptions options{.threads = threads, .buffer_bytes = buffer};
        EXPECT_TRUE(read_one(checkpoint, read, DType::kF32, options) == expected)
            << to_string(path.shape) << " buffer " << buffer << " threads " << threads;
        EXPECT_TRUE(read_one(checkpoint, read, DType::kF64, options) == expected_double)
            << to_string(path.shape) << " buffer " << buffer << " threads " << threads << ", converted";
      }
    }
  }
}

TEST(ReadSlices, ReadsPackedElementsByTheirBytes) {
  const FixtureTensor six{"six", DType::kF6E2M3, {2, 8}, [] {
                            std::vector<std::byte> bytes(12);
                            for (std::size_t i = 0; i < bytes.size(); ++i) {
                              bytes[i] = static_cast<std::byte>(i);
                            }
                            return bytes;
                          }()};
  CheckpointFixture fixture;
  fixture.write({six});
  const Checkpoint checkpoint = fixture.open();
  const auto memory = read_one(checkpoint, slice_of(checkpoint.tensors()[0], 1, {4, 4}), DType::kF6E2M3);
  EXPECT_EQ(
      memory,
      (std::vector<std::byte>{std::byte{3}, std::byte{4}, std::byte{5}, std::byte{9}, std::byte{10}, std::byte{11}}));
}

TEST(ReadSlices, ReturnsTheBytesAskedAndReportsAllBytesOfTheSlices) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {2000, 1000})});
  const Checkpoint checkpoint = fixture.open();
  const SliceRead read = slice_of(checkpoint.tensors()[0], 1, {0, 500});
  std::vector<std::byte> memory(read.range.bytes());
  const ReadTarget target{.data = memory.data(), .dtype = DType::kF32};
  std::vector<std::uint64_t> progress;
  const std::uint64_t asked =
      read_slices(checkpoint,
                  std::span(&read, 1),
                  std::span(&target, 1),
                  {.threads = 2, .on_progress = [&progress](std::uint64_t done) { progress.push_back(done); }})
          .bytes_asked;
  EXPECT_GT(asked, read.range.bytes());     // the gaps are read too, ...
  EXPECT_LE(asked, 2 * read.range.bytes()); // ... the rest is not
  ASSERT_GT(progress.size(), 1U);
  EXPECT_TRUE(std::ranges::is_sorted(progress));
  EXPECT_EQ(progress.back(), read.range.bytes());
}

TEST(ReadSlices, AsksForNoByteTooManyWhereRowsAreFarApartOrTouch) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {60, 20000})});
  const Checkpoint checkpoint = fixture.open();
  for (const int dim : {0, 1}) {
    const SliceRead read = slice_of(checkpoint.tensors()[0], dim, {10, 20});
    std::vector<std::byte> memory(read.range.bytes());
    const ReadTarget target{.data = memory.data(), .dtype = DType::kF32};
    EXPECT_EQ(read_slices(checkpoint, std::span(&read, 1), std::span(&target, 1)).bytes_asked, read.range.bytes());
  }
}

TEST(ReadSlices, SharesOneLargeTensorAmongTheThreads) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {4 << 20})}); // 16 MiB
  const Checkpoint checkpoint = fixture.open();
  const SliceRead read = slice_of(checkpoint.tensors()[0], -1, {0, 1});
  std::vector<std::byte> memory(read.range.bytes());
  const ReadTarget target{.data = memory.data(), .dtype = DType::kF32};
  std::set<std::thread::id> threads; // the callback is serialised, so it needs no lock of its own
  read_slices(checkpoint,
              std::span(&read, 1),
              std::span(&target, 1),
              {.threads = 2, .on_progress = [&](std::uint64_t) {
                 threads.insert(std::this_thread::get_id());
                 // Lets the other thread come in, on a busy machine too.
                 std::this_thread::sleep_for(std::chrono::milliseconds(threads.size() < 2 ? 200 : 0));
               }});
  EXPECT_EQ(threads.size(), 2U);
}

TEST(ReadSlices, ReadsASmallSliceFarInsideAFiveGigabyteTensor) {
  const std::int64_t rows = 5LL << 20; // of 1 KiB
  CheckpointFixture fixture;
  fixture.write({counting("t", {1})});
  const std::filesystem::path path = fixture.path() / "model.safetensors";
  const std::string header =
      concat(R"({"t":{"dtype":"F32","shape":[)", rows, R"(,256],"data_offsets":[0,)", rows * 1024, "]}}");
  const std::uint64_t length = header.size();
  const std::uint64_t data = 8 + length;
  {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header;
  }
  std::filesystem::resize_file(path, data + static_cast<std::uint64_t>(rows) * 1024); // sparse: holds no blocks
  {
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    const float last[2] = {1.5F, 2.5F};
    out.seekp(static_cast<std::streamoff>(data + static_cast<std::uint64_t>(rows) * 1024 - sizeof(last)));
    out.write(reinterpret_cast<const char*>(last), sizeof(last));
  }
  const Checkpoint checkpoint = fixture.open();
  const auto memory = read_one(checkpoint, slice_of(checkpoint.tensors()[0], 0, {rows - 1, 1}), DType::kF32);
  EXPECT_EQ(std::vector<std::byte>(memory.end() - 8, memory.end()), bytes_of<float>({1.5F, 2.5F}));
}

// --- Values.

/// A BF16 tensor of ones with `bad` at one flat index.
FixtureTensor with_value(const std::string& name, const Shape& shape, std::size_t at, std::uint16_t bad) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(numel(shape)), 0x3F80);
  values[at] = bad;
  return {.name = name, .dtype = DType::kBF16, .shape = shape, .bytes = bytes_of(values)};
}

TEST(ReadSlices, FindsTheFirstNaNOrInfinityOfEachSliceByItsPlaceInTheWholeTensor) {
  CheckpointFixture fixture;
  fixture.write({with_value("infinite", {500, 400}, 123'456, 0xFF80), // [308, 256]
                 with_value("nan", {4, 6}, 16, 0x7FC1),               // [2, 4]
                 with_value("plain", {4, 6}, 3, 0x7F7F)});            // the largest finite one
  const Checkpoint checkpoint = fixture.open();
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    std::vector<SliceRead> reads;
    std::vector<std::vector<std::byte>> memory;
    std::vector<ReadTarget> targets;
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      SliceRead read = slice_of(tensor, 1, {tensor.shape[1] / 2, tensor.shape[1] / 2});
      read.dim = 1;
      read.chunk = {tensor.shape[1] / 2, tensor.shape[1] / 2};
      reads.push_back(read);
      memory.emplace_back(bytes_in(read, dtype));
      targets.push_back({.data = memory.back().data(), .dtype = dtype});
    }
    const ReaderOptions options{.threads = 2, .check_values = true};
    const std::vector<NotFinite> found = read_slices(checkpoint, reads, targets, options).not_finite;
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[0].fqn, "infinite");
    EXPECT_EQ(found[0].index, (Shape{308, 256}));
    EXPECT_FALSE(found[0].nan);
    EXPECT_EQ(found[1].fqn, "nan");
    EXPECT_EQ(found[1].index, (Shape{2, 4}));
    EXPECT_TRUE(found[1].nan);
    EXPECT_TRUE(read_slices(checkpoint, reads, targets).not_finite.empty()); // not asked for
  }
}

TEST(ReadSlices, FindsWhatBecomesInfiniteInANarrowerDtype) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {3}, 65'519.0F)}); // 65520 rounds to infinity in F16
  const Checkpoint checkpoint = fixture.open();
  const SliceRead read = slice_of(checkpoint.tensors()[0], -1, {0, 1});
  std::vector<std::byte> memory(6);
  const ReadTarget target{.data = memory.data(), .dtype = DType::kF16};
  const auto found =
      read_slices(checkpoint, std::span(&read, 1), std::span(&target, 1), {.check_values = true}).not_finite;
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].index, Shape{1});
}

// --- Failures.

TEST(ReadSlices, StopsWithTheFilesErrorWhenItHasBecomeShorter) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {4 << 20})});
  const Checkpoint checkpoint = fixture.open();
  std::filesystem::resize_file(fixture.path() / "model.safetensors", 5 << 20);
  const SliceRead read = slice_of(checkpoint.tensors()[0], -1, {0, 1});
  for (int threads : {1, 2, 4}) {
    const auto failed = raised<PeerError>([&] { read_one(checkpoint, read, DType::kBF16, {.threads = threads}); });
    ASSERT_TRUE(failed.has_value()) << threads;
    EXPECT_EQ(failed->code, Code::kIoFailed);
    EXPECT_THAT(failed->where, HasSubstr("model.safetensors"));
  }
}

TEST(ReadSlices, StopsTheOtherThreadsAtTheFirstFailure) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {4 << 20})}); // 16 chunks
  const Checkpoint checkpoint = fixture.open();
  SliceRead beyond = slice_of(checkpoint.tensors()[0], 0, {0, 1});
  beyond.offset = 1ULL << 40; // past the end of the file
  const SliceRead good = slice_of(checkpoint.tensors()[0], -1, {});
  std::vector<std::byte> memory(good.range.bytes());
  const SliceRead reads[] = {beyond, good};
  const ReadTarget targets[] = {{.data = memory.data()}, {.data = memory.data()}};
  int finished = 0;
  EXPECT_THROW(read_slices(checkpoint,
                           reads,
                           targets,
                           {.threads = 2,
                            .on_progress =
                                [&finished](std::uint64_t) {
                                  ++finished;
                                  std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                }}),
               PeerError);
  EXPECT_LT(finished, 16);
}

TEST(ReadSlices, PassesOnWhatTheProgressCallbackThrows) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {4 << 20})});
  const Checkpoint checkpoint = fixture.open();
  EXPECT_THROW(read_one(checkpoint,
                        slice_of(checkpoint.tensors()[0], -1, {0, 1}),
                        DType::kF32,
                        {.threads = 2, .on_progress = [](std::uint64_t) { throw std::runtime_error("stop"); }}),
               std::runtime_error);
}

TEST(ReadSlices, RefusesWhatItCannotConvertBeforeItReads) {
  CheckpointFixture fixture;
  fixture.write({{"ids", DType::kI64, {2}, std::vector<std::byte>(16)}});
  const Checkpoint checkpoint = fixture.open();
  const auto refused =
      raised<UsageError>([&] { read_one(checkpoint, slice_of(checkpoint.tensors()[0], 0, {0, 2}), DType::kF32); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kNotConvertible);
  EXPECT_EQ(refused->where, "ids");
  EXPECT_EQ(read_one(checkpoint, slice_of(checkpoint.tensors()[0], 0, {0, 2}), DType::kI64).size(), 16U);
}

TEST(ReadSlices, RefusesFewerTargetsThanReads) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {4})});
  const Checkpoint checkpoint = fixture.open();
  const SliceRead read = slice_of(checkpoint.tensors()[0], 0, {0, 4});
  EXPECT_THROW(read_slices(checkpoint, std::span(&read, 1), {}), UsageError);
  EXPECT_EQ(read_slices(checkpoint, {}, {}).bytes_asked, 0U);
}

} // namespace
} // namespace tieshard
