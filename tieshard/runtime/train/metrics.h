// tieshard/runtime/train/metrics.h
//
// What a run leaves for programs to read: one JSON object a step, and a summary at the end.
//
// Flow: trainer -> [this] -> OUT/metrics.jsonl, OUT/summary.json

#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

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
  std::vector<StepMetrics> steps;
};

/// Appends to metrics.jsonl, a line a step, flushed.
class MetricsFile {
 public:
  /// @throws PeerError io-failed
  explicit MetricsFile(const std::filesystem::path& path);

  /// @throws PeerError io-failed
  void write(const StepMetrics& metrics);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// The summary as JSON text: load_s, ready_at, ranks [{rank, rss_before_load_mib, rss_after_load_mib, rss_peak_mib}],
/// step_s, losses,
/// skipped_steps.
std::string to_json(const RunSummary& summary);

} // namespace tieshard
