#include "tieshard/core/state/slab_stream.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/box_walk.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kCachedBytes = 2 << 20;    ///< of a slab that is still in the cache when it is written
constexpr std::uint64_t kBytesOfTarget = 64 << 10; ///< of a slab; less makes calls of the kernel cost more than bytes

void read_slab(const ShardedFiles& files, const ShardedTensor& tensor, Slab& slab) {
  slab.element_bytes = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
  slab.parts.clear();
  slab.data.resize(static_cast<std::size_t>(numel(slab.box.shape)) * slab.element_bytes);
  std::size_t at = 0;
  for (const StoredBlock& block : tensor.blocks) {
    std::optional<Box> part = intersection(block.box, slab.box);
    if (!part) {
      continue;
    }
    // A slab has all of the inner dimensions, so its part of a block is one run of the block's bytes.
    const BoxRuns runs = runs_of(*part, block.box, *part, slab.element_bytes);
    const auto into =
        std::span(slab.data).subspan(at, static_cast<std::size_t>(numel(part->shape)) * slab.element_bytes);
    files.files()[block.file].file().read_at(block.offset + runs.from_first, into);
    slab.parts.push_back({.box = *std::move(part), .at = at});
    at += into.size();
  }
}

/// Slabs on their way from one reader to several workers, each of which takes every slab.
class SlabRing {
 public:
  SlabRing(std::size_t slots, std::size_t workers) : slabs_(slots), taken_(workers, 0) {}

  /// The slot that is to be filled next, once every worker is through with it; null when a worker failed.
  Slab* wait_for_room() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return failure_ || filled_ - *std::ranges::min_element(taken_) < slabs_.size(); });
    return failure_ ? nullptr : &slabs_[filled_ % slabs_.size()];
  }

  void publish() {
    const std::scoped_lock lock(mutex_);
    ++filled_;
    changed_.notify_all();
  }

  void end(std::exception_ptr failure) {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    if (failure && !failure_) {
      failure_ = std::move(failure);
    }
    changed_.notify_all();
  }

  /// Gives `worker` each slab until the end.
  void serve(std::size_t worker, const std::function<void(const Slab&)>& take) {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return failure_ || ended_ || taken_[worker] < filled_; });
      if (failure_ || taken_[worker] == filled_) {
        return;
      }
      const Slab& slab = slabs_[taken_[worker] % slabs_.size()];
      lock.unlock();
      take(slab);
      lock.lock();
      ++taken_[worker];
      changed_.notify_all();
    }
  }

  void rethrow() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slab> slabs_;
  std::uint64_t filled_ = 0;
  std::vector<std::uint64_t> taken_; ///< by each worker
  bool ended_ = false;
  std::exception_ptr failure_;
};

/// Calls next(slab) with the job and the box of each slab set.
template <typename Next>
void for_each_slab_of(const std::vector<SlabJob>& jobs, std::uint64_t slab_bytes, Next&& next) {
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    const ShardedTensor& tensor = *jobs[job].tensor;
    if (std::ranges::find(jobs[job].part.shape, 0) != jobs[job].part.shape.end()) {
      continue;
    }
    const Box whole{.offsets = Shape(tensor.shape.size(), 0), .shape = tensor.shape};
    const std::uint64_t most =
        std::max<std::uint64_t>(1, slab_bytes * 8 / static_cast<std::uint64_t>(bits(tensor.dtype)));
    for_each_slab(whole, jobs[job].part, most, [&](const Box& box) { next(job, box); });
  }
}

/// Thrown inside the reader when a worker failed; its own error is kept by the ring.
struct Stopped {};

} // namespace

std::span<const std::byte> Slab::gather(const Box& target, std::vector<std::byte>& scratch) const {
  const std::size_t bytes = static_cast<std::size_t>(numel(target.shape)) * element_bytes;
  for (const Part& part : parts) {
    const std::optional<Box> common = intersection(part.box, target);
    if (!common) {
      continue;
    }
    const BoxRuns runs = runs_of(*common, part.box, target, element_bytes);
    if (runs.counts.empty() && runs.bytes == bytes) {
      return std::span(data).subspan(part.at + runs.from_first, bytes);
    }
    scratch.resize(bytes);
    copy_box(*common, part.box, data.data() + part.at, target, scratch.data(), element_bytes);
  }
  return std::span(scratch).first(bytes);
}

SlabLimits slab_limits(std::uint64_t memory, std::size_t workers, std::size_t targets) {
  SlabLimits limits;
  const std::uint64_t wanted = std::max(kCachedBytes, kBytesOfTarget * targets);
  limits.slab_bytes = std::max<std::uint64_t>(1, std::min(wanted, memory / (limits.slabs + workers)));
  return limits;
}

ShardedTensor as_bytes(const ShardedTensor& tensor) {
  ShardedTensor bytes{.name = tensor.name,
                      .dtype = DType::kU8,
                      .shape = {static_cast<std::int64_t>(*checked_bytes(tensor.shape, tensor.dtype))},
                      .blocks = tensor.blocks};
  for (StoredBlock& block : bytes.blocks) {
    block.box = {.offsets = {0}, .shape = bytes.shape};
  }
  return bytes;
}

void stream_slabs(const ShardedFiles& files,
                  const std::vector<SlabJob>& jobs,
                  const SlabLimits& limits,
                  const std::vector<std::function<void(const Slab&)>>& workers,
                  bool overlap) {
  if (workers.size() == 1 && !overlap) {
    Slab slab;
    for_each_slab_of(jobs, limits.slab_bytes, [&](std::size_t job, const Box& box) {
      slab.job = job;
      slab.box = box;
      read_slab(files, *jobs[job].tensor, slab);
      workers.front()(slab);
    });
    return;
  }
  SlabRing ring(limits.slabs, workers.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t worker = 0; worker < workers.size(); ++worker) {
      threads.emplace_back([&ring, &workers, worker] {
        try {
          ring.serve(worker, workers[worker]);
        } catch (...) {
          ring.end(std::current_exception());
        }
      });
    }
    try {
      for_each_slab_of(jobs, limits.slab_bytes, [&](std::size_t job, const Box& box) {
        Slab* const slab = ring.wait_for_room();
        if (slab == nullptr) {
          throw Stopped();
        }
        slab->job = job;
        slab->box = box;
        read_slab(files, *jobs[job].tensor, *slab);
        ring.publish();
      });
      ring.end(nullptr);
    } catch (const Stopped&) {
      ring.end(nullptr);
    } catch (...) {
      ring.end(std::current_exception());
    }
  }
  ring.rethrow();
}

} // namespace tieshard
