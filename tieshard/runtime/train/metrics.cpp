#include "tieshard/runtime/train/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

double mebibytes(std::uint64_t bytes) {
  return static_cast<double>(bytes / 1024) / 1024.0;
}

} // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path) : path_(path), file_(path, std::ios::trunc) {
  if (!file_) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "the metrics file could not be made",
                     .where = path.string(),
                     .why = std::strerror(errno),
                     .fix = "check permissions and free space of --out"});
  }
}

void MetricsFile::write(const StepMetrics& metrics) {
  const nlohmann::ordered_json line{{"step", metrics.step},
                                    {"loss", metrics.loss},
                                    {"grad_norm", metrics.grad_norm},
                                    {"lr", metrics.lr},
                                    {"tokens", metrics.tokens},
                                    {"seconds", metrics.seconds},
                                    {"skipped", metrics.skipped}};
  file_ << line.dump() << '\n' << std::flush;
  if (!file_) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "the metrics file could not be written",
                     .where = path_.string(),
                     .fix = "check free space of --out"});
  }
}

std::string to_json(const RunSummary& summary) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (std::size_t rank = 0; rank < summary.ranks.size(); ++rank) {
    const RankMemory& memory = summary.ranks[rank];
    ranks.push_back({{"rank", rank},
                     {"rss_before_load_mib", mebibytes(memory.before_load)},
                     {"rss_after_load_mib", mebibytes(memory.after_load)},
                     {"rss_peak_mib", mebibytes(memory.end)}});
  }
  nlohmann::ordered_json seconds = nlohmann::ordered_json::array();
  nlohmann::ordered_json losses = nlohmann::ordered_json::array();
  for (const StepMetrics& step : summary.steps) {
    seconds.push_back(step.seconds);
    losses.push_back(step.loss);
  }
  return nlohmann::ordered_json{{"load_s", summary.load_seconds},
                                {"ready_at", summary.ready_at},
                                {"ranks", ranks},
                                {"step_s", seconds},
                                {"losses", losses},
                                {"skipped_steps", std::ranges::count_if(summary.steps, &StepMetrics::skipped)}}
             .dump(2) +
         "\n";
}

} // namespace tieshard
