// tieshard/core/report/run_files.h
//
// What a training run has left so far, finished or not: its steps, and what happened at which of them.
//
// Flow: OUT/metrics.jsonl, summary.json, config.json, checkpoints/ -> [this] -> run_report

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tieshard {

/// A line of metrics.jsonl.
struct RunStep {
  std::int64_t step = 0;
  double loss = 0; ///< NaN where the file has null
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  bool skipped = false;
  std::optional<double> eval_loss{};
};

struct RunRank {
  std::int64_t rank = 0;
  std::uint64_t after_load = 0; ///< bytes
  std::uint64_t peak = 0;
};

struct RunEvent {
  std::int64_t step = 0;
  std::string what{};
};

struct RunFiles {
  std::vector<RunStep> steps{};
  std::size_t bad_lines = 0;      ///< of metrics.jsonl, that are no step: torn by a kill
  bool finished = false;          ///< summary.json is there
  std::vector<RunRank> ranks{};   ///< of the last job that ended
  std::vector<RunEvent> events{}; ///< ascending: saves, evaluations that are no step's own, skipped steps, the end
  std::vector<std::pair<std::string, std::string>> flags{}; ///< of config.json, in its order
};

/// Reads what there is. A run that is being written is read as far as it has come.
/// @throws InputError directory-not-found; file-not-found where there is no metrics.jsonl; PeerError io-failed
RunFiles read_run(const std::filesystem::path& directory);

} // namespace tieshard
