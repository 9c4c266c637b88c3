#include "tieshard/core/io/reader.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/chunk_reader.h"
#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/read_ahead.h"
#include "tieshard/core/io/read_chunk.h"

namespace tieshard {
namespace {

/// What the threads share.
class Work {
 public:
  Work(const Checkpoint& checkpoint,
       std::span<const SliceRead> reads,
       const std::vector<ReadChunk>& chunks,
       const ReaderOptions& options)
      : chunks_(chunks), read_ahead_(checkpoint, reads, chunks), options_(options), pieces_left_(reads.size()) {
    for (const ReadChunk& chunk : chunks) {
      ++pieces_left_[chunk.slice];
    }
  }

  /// Reads chunks in order until none is left or a thread has failed.
  void run(ChunkReader reader) {
    try {
      while (!failed_) {
        const std::size_t index = next_++;
        if (index >= chunks_.size()) {
          return;
        }
        read_ahead_.before(index);
        ChunkOutcome outcome = reader.read(chunks_[index]);
        if (chunks_[index].way == ReadChunk::Way::kDecode && --pieces_left_[chunks_[index].slice] == 0) {
          outcome.not_finite = reader.find_not_finite(chunks_[index].slice);
        }
        finish(outcome, chunks_[index]);
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
  void require_success() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

  std::uint64_t asked() const {
    return asked_;
  }

  /// By slice: the first element in memory order that is not finite.
  const std::map<std::size_t, std::uint64_t>& not_finite() const {
    return not_finite_;
  }

 private:
  void finish(const ChunkOutcome& outcome, const ReadChunk& chunk) {
    const std::lock_guard lock(mutex_);
    asked_ += outcome.asked;
    done_ += chunk.bytes();
    if (outcome.not_finite) {
      const auto [first, fresh] = not_finite_.emplace(chunk.slice, *outcome.not_finite);
      first->second = std::min(first->second, *outcome.not_finite);
    }
    if (options_.on_progress) {
      options_.on_progress(done_);
    }
  }

  const std::vector<ReadChunk>& chunks_;
  ReadAhead read_ahead_;
  const ReaderOptions& options_;
  std::vector<std::atomic<std::size_t>> pieces_left_; ///< by slice
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::uint64_t asked_ = 0;
  std::uint64_t done_ = 0;
  std::map<std::size_t, std::uint64_t> not_finite_;
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
    const bool plain = reads[i].encoding == Encoding::kPlain;
    if (plain ? !convertible(reads[i].stored_dtype, targets[i].dtype) : !is_wide_float(targets[i].dtype)) {
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

/// Element `at` of the slice, in memory order, as an index into the whole parameter.
NotFinite describe(const SliceRead& read, const ReadTarget& target, std::uint64_t at) {
  const std::byte* const element = target.data + at * static_cast<std::uint64_t>(bits(target.dtype)) / 8;
  NotFinite found = not_finite_at(read.fqn, element, target.dtype, at, read.local_shape);
  if (read.dim >= 0) {
    found.index[static_cast<std::size_t>(read.dim)] += read.chunk.offset;
  }
  return found;
}

} // namespace

ReadReport read_slices(const Checkpoint& checkpoint,
                       std::span<const SliceRead> reads,
                       std::span<const ReadTarget> targets,
                       const ReaderOptions& options) {
  require_fitting(reads, targets);
  const std::uint64_t limit = buffer_of_thread(options);
  std::vector<ReadChunk> chunks;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    cut_slice(reads[i], targets[i], i, limit, chunks);
  }
  const std::size_t threads = std::clamp<std::size_t>(
      static_cast<std::size_t>(std::max(options.threads, 1)), 1, std::max<std::size_t>(chunks.size(), 1));
  Work work(checkpoint, reads, chunks, options);
  const ChunkReader reader(checkpoint, reads, targets, options.check_values);
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < threads; ++i) {
    others.emplace_back([&work, &reader] { work.run(reader); });
  }
  work.run(reader);
  others.clear(); // joins
  work.require_success();
  ReadReport report{.bytes_asked = work.asked()};
  for (const auto& [slice, element] : work.not_finite()) {
    report.not_finite.push_back(describe(reads[slice], targets[slice], element));
  }
  return report;
}

} // namespace tieshard
