// tieshard/runtime/state/checkpoint_writer.h
//
// Saves a run's whole state, complete or absent: each rank its own slices, each storage once.
//
// Flow:   checkpoint_blocks -> [this] -> core/state (shard files, manifest, store)
// Source: torch.distributed.checkpoint's save, async_save and its stagers that a step waits for, in what they are for;
//         docs/checkpoints.md has the format.
//
// Note: [In the background] A rank's thread writes a copy of its state and leaves a file that says so beside it; rank
// 0's
//       waits for those of all ranks, writes the manifest and publishes. Ranks meet in the file system that they write
//       to, not in collectives, which training uses at the same time.

#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/state/checkpoint_store.h"
#include "tieshard/core/state/directory_lock.h"
#include "tieshard/core/state/manifest.h"
#include "tieshard/core/state/trainer_state.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/state/checkpoint_blocks.h"

namespace tieshard {

/// What a save does that comes while the one before is still being written.
enum class BusySave { kWait, kSkip };

struct CheckpointWriterOptions {
  std::int64_t keep = 3;           ///< newest checkpoints that stay; 0: all
  bool background = false;         ///< save() returns when the state has been copied
  BusySave busy = BusySave::kWait; ///< of saves in the background
  /// Of saves in the background: save() returns while the state is still being copied. The caller calls await_copy()
  /// before it changes a parameter or the optimizer's state: a forward and a backward pass change neither.
  bool overlap_copy = false;
  bool frozen = true;      ///< store frozen parameters; false beside an adapter, whose base is another directory
  std::string optimizer{}; ///< its name in the manifest: "adamw"
  const Checkpoint* source = nullptr; ///< whose config.json, tokenizer and similar files go into each checkpoint
};

struct SaveReport {
  std::filesystem::path directory;
  std::int64_t step = 0;
  std::uint64_t bytes = 0;                        ///< of all files
  double seconds = 0;                             ///< from save() until it was published
  double blocked = 0;                             ///< that save() and await_copy() took
  std::vector<std::filesystem::path> set_aside{}; ///< later checkpoints, of a line that the run has left
};

class CheckpointWriter {
 public:
  /// @param directory  RUN/checkpoints; made by the first save, which also locks it against other jobs
  CheckpointWriter(std::shared_ptr<FsdpState> state,
                   const torch::optim::Optimizer& optimizer,
                   const std::filesystem::path& directory,
                   CheckpointWriterOptions options);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Gives a background save up that has not ended; call finish() first where it matters.
  ~CheckpointWriter();

  /// Saves `trainer.step`. The random generators are added here. A collective; every rank must call it with the same
  /// arguments, resharded, and all must see one file system. What an earlier save in the background failed with is
  /// thrown here too.
  /// @returns false when it was skipped because the one before is still being written
  /// @throws InputError directory-in-use; PeerError disk-full, io-failed, save-failed, peer-failed; UsageError
  ///         optimizer-parameter. The checkpoints before it are as they were then
  bool save(TrainerState trainer);

  /// With overlap_copy: waits until the last save() has its copy; nothing where that has been waited for. A collective.
  /// @throws as save()
  void await_copy();

  /// Waits until all that was saved is published. A collective. @throws as save()
  void finish();

  /// Throws what this rank's background save failed with. No communication; call it inside an agree() at each step.
  /// @throws PeerError save-failed
  void require_no_failure();

  /// Gets the memory of the next background save ready, in the background. No communication; call it after a step.
  void prepare();

  /// Saves that were published since the last call, on rank 0; empty on all others.
  std::vector<SaveReport> take_reports();

 private:
  struct Job;

  std::shared_ptr<Job> make_job(TrainerState trainer, std::chrono::steady_clock::time_point started);
  bool busy_anywhere();
  void collect();
  void save_now(const std::shared_ptr<Job>& job);
  void save_later(const std::shared_ptr<Job>& job);
  void publish(Job& job, const std::vector<FileRecord>& files);
  bool writes() const;

  std::shared_ptr<FsdpState> state_;
  const torch::optim::Optimizer& optimizer_;
  CheckpointStore store_;
  CheckpointWriterOptions options_;
  std::optional<DirectoryLock> lock_; ///< of rank 0
  SnapshotBuffer buffer_;
  std::future<void> preparing_;
  std::shared_ptr<Job> running_; ///< in the background
  bool copying_ = false;         ///< await_copy() has something to wait for
  std::vector<SaveReport> reports_;
};

} // namespace tieshard
