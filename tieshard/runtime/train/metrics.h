// tieshard/runtime/train/metrics.h
//
// What a run leaves for programs to read: one JSON object a step, and a summary at the end.
//
// Flow: trainer -> [this] -> OUT/metrics.jsonl, OUT/summary.json; core/metrics/event_file -> OUT/tensorboard

#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/metrics/event_file.h"
#include "tieshard/runtime/state/checkpoint_writer.h"
#include "tieshard/runtime/train/evaluation.h"

namespace tieshard {

/// One optimizer step of the whole mesh.
struct StepMetrics {
  std::int64_t step = 0;   ///< from 1
  double loss = 0;         ///< nats per target, mean over all targets of the global batch, before the step
  double grad_norm = 0;    ///< before clipping; null in the file when it is not finite
  double lr = 0;           ///< of this step: --lr times the schedule's factor
  std::int64_t tokens = 0; ///< of the global batch
  double seconds = 0;      ///< of the slowest rank
  bool skipped = false;    ///< the gradient was not finite, and nothing was stepped
  std::optional<Evaluation> evaluation{}; ///< of the parameters after the step, where one was due
};

/// Memory of one rank, in bytes (peak resident set at three moments).
struct RankMemory {
  std::uint64_t before_load = 0;
  std::uint64_t after_load = 0;
  std::uint64_t end = 0;
};

struct RunSummary {
  double load_seconds = 0; ///< of the slowest rank: until it holds its shards, every page of them
  double ready_at = 0;     ///< Unix time in seconds at which the slowest rank did
  std::vector<RankMemory> ranks;
  std::vector<StepMetrics> steps; ///< of this job
  std::int64_t first_step = 0;    ///< made before this job, by those that it goes on from
  std::vector<SaveReport> saves;  ///< of rank 0
  double export_seconds = 0;
  int stopped_by = 0; ///< the signal that ended the run before its last step; 0: none
};

/// What TensorBoard shows of a step: train/loss, train/grad_norm, train/lr, train/tokens_per_second, eval/loss.
std::vector<Scalar> scalars_of(const StepMetrics& metrics);

/// Appends to metrics.jsonl, a line a step, flushed: step, loss, grad_norm, lr, tokens, seconds, skipped; where the run
/// was evaluated eval_loss, eval_perplexity, eval_targets and eval_seconds too.
class MetricsFile {
 public:
  /// @param keep  steps whose lines, of earlier jobs, stay; all others, which were made after the checkpoint that a run
  ///              goes on from, are taken out. Nothing stays of a line that a killed job left unfinished.
  /// @throws PeerError io-failed
  MetricsFile(const std::filesystem::path& path, std::int64_t keep);

  /// @throws PeerError io-failed
  void write(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// The summary as JSON text: load_s, ready_at, ranks [{rank, rss_before_load_mib, rss_after_load_mib, rss_peak_mib}],
/// first_step, step_s, losses, skipped_steps, evaluations [{step, loss, perplexity, targets, seconds}], saves [{step,
/// seconds, blocked_s, bytes}], export_s, stopped_by.
std::string to_json(const RunSummary& summary);

} // namespace tieshard
