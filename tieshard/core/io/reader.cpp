#include "tieshard/core/io/reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/convert.h"

namespace tieshard {
namespace {

/// Slice bytes that a thread takes at once. Small enough that a conversion finds its source in the cache, and that a
/// single large tensor occupies all threads; large enough that a system call does not show.
constexpr std::uint64_t kChunkBytes = 1 << 20;

/// A gap between two rows up to which reading on is cheaper than a system call for each row.
constexpr std::uint64_t kGapBytes = 4096;

constexpr std::uint64_t kSmallestBuffer = 4096; ///< a multiple of every element size

/// Consecutive whole rows of a slice, or (rows == 1) a piece of one row.
struct Chunk {
  std::size_t slice = 0;
  std::uint64_t first_row = 0;
  std::uint64_t rows = 1;
  std::uint64_t begin = 0;     ///< byte within the row
  std::uint64_t row_bytes = 0; ///< of each row, from `begin` on

  std::uint64_t bytes() const {
    return rows * row_bytes;
  }
};

bool reads_gaps(const StridedRange& range) {
  return range.rows > 1 && range.stride - range.row_bytes <= kGapBytes;
}

/// Cuts a slice so that no chunk needs more than `limit` bytes of buffer, gaps included where they are read.
void cut(const SliceRead& read, std::size_t slice, std::uint64_t limit, std::vector<Chunk>& chunks) {
  const StridedRange& range = read.range;
  if (range.bytes() == 0) {
    return; // a rank may hold nothing of a tensor
  }
  const std::uint64_t pitch = reads_gaps(range) ? range.stride : range.row_bytes;
  if (pitch <= limit) {
    const std::uint64_t rows_at_once = limit / pitch;
    for (std::uint64_t row = 0; row < range.rows; row += rows_at_once) {
      chunks.push_back({.slice = slice,
                        .first_row = row,
                        .rows = std::min(rows_at_once, range.rows - row),
                        .begin = 0,
                        .row_bytes = range.row_bytes});
    }
    return;
  }
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    for (std::uint64_t begin = 0; begin < range.row_bytes; begin += limit) {
      chunks.push_back({.slice = slice,
                        .first_row = row,
                        .rows = 1,
                        .begin = begin,
                        .row_bytes = std::min(limit, range.row_bytes - begin)});
    }
  }
}

/// What `stored_bytes` become in the target's dtype.
std::uint64_t in_target(std::uint64_t stored_bytes, DType stored, DType target) {
  return stored_bytes * static_cast<std::uint64_t>(bits(target)) / static_cast<std::uint64_t>(bits(stored));
}

/// Reads one chunk after another; each thread has one.
class ChunkReader {
 public:
  ChunkReader(const Checkpoint& checkpoint, std::span<const SliceRead> reads, std::span<const ReadTarget> targets)
      : checkpoint_(checkpoint), reads_(reads), targets_(targets) {}

  /// Returns the bytes asked from the file.
  std::uint64_t read(const Chunk& chunk) {
    const SliceRead& slice = reads_[chunk.slice];
    const ReadTarget& target = targets_[chunk.slice];
    const File& file = checkpoint_.files()[slice.file].file();
    const std::uint64_t stored_bits = static_cast<std::uint64_t>(bits(slice.stored_dtype));
    const std::uint64_t source = slice.offset + slice.range.first + chunk.first_row * slice.range.stride + chunk.begin;
    const std::uint64_t done = chunk.first_row * slice.range.row_bytes + chunk.begin;
    std::byte* const out = target.data + in_target(done, slice.stored_dtype, target.dtype);
    if (chunk.rows > 1 && reads_gaps(slice.range)) {
      return read_with_gaps(file, source, chunk, slice, target, out);
    }
    const bool straight = slice.stored_dtype == target.dtype;
    std::byte* const landing = straight ? out : buffer(chunk.bytes());
    for (std::uint64_t row = 0; row < chunk.rows; ++row) {
      file.read_at(source + row * slice.range.stride, std::span(landing + row * chunk.row_bytes, chunk.row_bytes));
    }
    if (!straight) {
      convert(landing, slice.stored_dtype, out, target.dtype, chunk.bytes() * 8 / stored_bits);
    }
    return chunk.bytes();
  }

 private:
  std::uint64_t read_with_gaps(const File& file,
                               std::uint64_t source,
                               const Chunk& chunk,
                               const SliceRead& slice,
                               const ReadTarget& target,
                               std::byte* out) {
    const std::uint64_t asked = (chunk.rows - 1) * slice.range.stride + chunk.row_bytes;
    const std::byte* const block = buffer(asked);
    file.read_at(source, std::span(buffer_.data(), asked));
    const std::uint64_t elements = chunk.row_bytes * 8 / static_cast<std::uint64_t>(bits(slice.stored_dtype));
    const std::uint64_t out_bytes = in_target(chunk.row_bytes, slice.stored_dtype, target.dtype);
    for (std::uint64_t row = 0; row < chunk.rows; ++row) {
      convert(block + row * slice.range.stride, slice.stored_dtype, out + row * out_bytes, target.dtype, elements);
    }
    return asked;
  }

  std::byte* buffer(std::uint64_t bytes) {
    if (buffer_.size() < bytes) {
      buffer_.resize(bytes);
    }
    return buffer_.data();
  }

  const Checkpoint& checkpoint_;
  std::span<const SliceRead> reads_;
  std::span<const ReadTarget> targets_;
  std::vector<std::byte> buffer_;
};

/// What the threads share.
class Work {
 public:
  Work(std::vector<Chunk> chunks, const ReaderOptions& options) : chunks_(std::move(chunks)), options_(options) {}

  /// Reads chunks in order until none is left or a thread has failed.
  void run(ChunkReader reader) {
    try {
      while (!failed_) {
        const std::size_t index = next_++;
        if (index >= chunks_.size()) {
          return;
        }
        finish(reader.read(chunks_[index]), chunks_[index].bytes());
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) {
        failure_ = std::current_exception();
      }
      failed_ = true;
    }
  }

  /// @throws the first failure of any thread
  std::uint64_t result() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return asked_;
  }

 private:
  void finish(std::uint64_t asked, std::uint64_t done) {
    const std::lock_guard lock(mutex_);
    asked_ += asked;
    done_ += done;
    if (options_.on_progress) {
      options_.on_progress(done_);
    }
  }

  const std::vector<Chunk> chunks_;
  const ReaderOptions& options_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::uint64_t asked_ = 0;
  std::uint64_t done_ = 0;
};

void require_fitting(std::span<const SliceRead> reads, std::span<const ReadTarget> targets) {
  if (reads.size() != targets.size()) {
    throw UsageError(
        {.code = Code::kBadSlice,
         .what = "reads and targets differ in number",
         .why = concat("expected one target a read, got ", reads.size(), " reads and ", targets.size(), " targets"),
         .fix = "give each slice its memory"});
  }
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (!convertible(reads[i].stored_dtype, targets[i].dtype)) {
      throw UsageError({.code = Code::kNotConvertible,
                        .what = "no conversion between two dtypes",
                        .where = reads[i].fqn,
                        .why = concat("only F16, BF16, F32 and F64 convert, got ",
                                      name(reads[i].stored_dtype),
                                      " to ",
                                      name(targets[i].dtype)),
                        .fix = "read the tensor in its stored dtype"});
    }
  }
}

} // namespace

std::uint64_t read_slices(const Checkpoint& checkpoint,
                          std::span<const SliceRead> reads,
                          std::span<const ReadTarget> targets,
                          const ReaderOptions& options) {
  require_fitting(reads, targets);
  const std::uint64_t aligned_buffer = options.buffer_bytes / kSmallestBuffer * kSmallestBuffer;
  const std::uint64_t limit = std::clamp(aligned_buffer, kSmallestBuffer, kChunkBytes);
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    cut(reads[i], i, limit, chunks);
  }
  const std::size_t threads = std::clamp<std::size_t>(
      static_cast<std::size_t>(std::max(options.threads, 1)), 1, std::max<std::size_t>(chunks.size(), 1));
  Work work(std::move(chunks), options);
  const ChunkReader reader(checkpoint, reads, targets);
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < threads; ++i) {
    others.emplace_back([&work, &reader] { work.run(reader); });
  }
  work.run(reader);
  others.clear(); // joins
  return work.result();
}

} // namespace tieshard
