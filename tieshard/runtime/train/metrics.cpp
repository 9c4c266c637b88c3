#include "tieshard/runtime/train/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"

namespace tieshard {
namespace {

double mebibytes(std::uint64_t bytes) {
  return static_cast<double>(bytes / 1024) / 1024.0;
}

/// The lines of `path` of steps up to `last`.
std::string kept_lines(const std::filesystem::path& path, std::int64_t last) {
  std::string kept;
  std::ifstream file(path);
  for (std::string line; last > 0 && std::getline(file, line);) {
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object() && parsed.value("step", last + 1) <= last) {
      kept += line + "\n";
    }
  }
  return kept;
}

} // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t keep) : path_(path) {
  write_text_file(path, kept_lines(path, keep));
  file_.open(path, std::ios::app);
  if (!file_) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "the metrics file could not be made",
                     .where = path.string(),
                     .why = std::strerror(errno),
                     .fix = "check permissions and free space of --out"});
  }
}

std::vector<Scalar> scalars_of(const StepMetrics& metrics) {
  const double rate = metrics.seconds > 0 ? static_cast<double>(metrics.tokens) / metrics.seconds : 0;
  std::vector<Scalar> scalars{{"train/loss", static_cast<float>(metrics.loss)},
                              {"train/grad_norm", static_cast<float>(metrics.grad_norm)},
                              {"train/lr", static_cast<float>(metrics.lr)},
                              {"train/tokens_per_second", static_cast<float>(rate)}};
  if (metrics.evaluation) {
    scalars.push_back({"eval/loss", static_cast<float>(metrics.evaluation->loss)});
  }
  return scalars;
}

void MetricsFile::write(const StepMetrics& metrics) {
  nlohmann::ordered_json line{{"step", metrics.step},
                              {"loss", metrics.loss},
                              {"grad_norm", metrics.grad_norm},
                              {"lr", metrics.lr},
                              {"tokens", metrics.tokens},
                              {"seconds", metrics.seconds},
                              {"skipped", metrics.skipped}};
  if (const auto& evaluation = metrics.evaluation) {
    line["eval_loss"] = evaluation->loss;
    line["eval_perplexity"] = evaluation->perplexity();
    line["eval_targets"] = evaluation->targets;
    line["eval_seconds"] = evaluation->seconds;
  }
  file_ << line.dump() << '\n' << std::flush;
  if (!file_) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "the metrics file could not be written",
                     .where = path_.string(),
                     .why = std::strerror(errno),
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
  nlohmann::ordered_json evaluations = nlohmann::ordered_json::array();
  for (const StepMetrics& step : summary.steps) {
    if (const auto& evaluation = step.evaluation) {
      evaluations.push_back({{"step", step.step},
                             {"loss", evaluation->loss},
                             {"perplexity", evaluation->perplexity()},
                             {"targets", evaluation->targets},
                             {"seconds", evaluation->seconds}});
    }
  }
  nlohmann::ordered_json saves = nlohmann::ordered_json::array();
  for (const SaveReport& save : summary.saves) {
    saves.push_back(
        {{"step", save.step}, {"seconds", save.seconds}, {"blocked_s", save.blocked}, {"bytes", save.bytes}});
  }
  return nlohmann::ordered_json{
             {"load_s", summary.load_seconds},
             {"ready_at", summary.ready_at},
             {"ranks", ranks},
             {"first_step", summary.first_step},
             {"step_s", seconds},
             {"losses", losses},
             {"skipped_steps", std::ranges::count_if(summary.steps, &StepMetrics::skipped)},
             {"evaluations", evaluations},
             {"saves", saves},
             {"export_s", summary.export_seconds},
             {"stopped_by",
              summary.stopped_by == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(summary.stopped_by)}}
             .dump(2) +
         "\n";
}

} // namespace tieshard
