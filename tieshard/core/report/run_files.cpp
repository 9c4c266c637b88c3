#include "tieshard/core/report/run_files.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <system_error>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

double number_of(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::int64_t integer_of(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

/// A line as a step; nothing when it is none.
std::optional<RunStep> step_of(const std::string& text) {
  const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
  if (!line.is_object() || integer_of(line, "step") < 1) {
    return std::nullopt;
  }
  RunStep step{.step = integer_of(line, "step"),
               .loss = number_of(line, "loss"),
               .grad_norm = number_of(line, "grad_norm"),
               .lr = number_of(line, "lr"),
               .tokens = integer_of(line, "tokens"),
               .seconds = number_of(line, "seconds"),
               .skipped = line.value("skipped", nlohmann::json(false)) == nlohmann::json(true)};
  if (line.contains("eval_loss")) {
    step.eval_loss = number_of(line, "eval_loss");
  }
  return step;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

void read_steps(const fs::path& directory, RunFiles& run) {
  const fs::path path = directory / "metrics.jsonl";
  std::error_code ignored;
  if (fs::exists(path, ignored) && !is_file(path)) { // a FIFO would be waited for
    throw InputError({.code = Code::kFileUnreadable,
                      .what = "a file is there but cannot be opened",
                      .where = path.string(),
                      .why = "expected a regular file, got something else",
                      .fix = "pass the --out of a tieshard train"});
  }
  std::ifstream file(path);
  if (!file && !is_file(directory / "summary.json")) { // a run of no step has that alone
    throw InputError({.code = Code::kFileNotFound,
                      .what = "the directory holds no training run",
                      .where = path.string(),
                      .why = "expected metrics.jsonl, which a run writes from its first step on, got no such file",
                      .fix = "pass the --out of a tieshard train"});
  }
  for (std::string line; std::getline(file, line);) {
    if (std::optional<RunStep> step = step_of(line)) {
      run.steps.push_back(*step);
    } else {
      ++run.bad_lines;
    }
  }
  std::ranges::stable_sort(run.steps, {}, &RunStep::step);
}

/// A JSON file that may be absent or half written; null then.
nlohmann::ordered_json document_of(const fs::path& path) {
  if (!is_file(path)) {
    return {};
  }
  const nlohmann::ordered_json document = nlohmann::ordered_json::parse(read_text_file(path), nullptr, false);
  return document.is_object() ? document : nlohmann::ordered_json();
}

std::uint64_t mebibytes(const nlohmann::ordered_json& entry, const char* key) {
  const auto found = entry.find(key);
  const double value = found != entry.end() && found->is_number() ? found->get<double>() : 0;
  return value > 0 ? static_cast<std::uint64_t>(value * (1 << 20)) : 0;
}

void read_summary(const fs::path& path, RunFiles& run) {
  const nlohmann::ordered_json summary = document_of(path);
  if (summary.is_null()) {
    return;
  }
  run.finished = true;
  for (const auto& entry : summary.value("ranks", nlohmann::ordered_json::array())) {
    run.ranks.push_back({.rank = entry.value("rank", std::int64_t{0}),
                         .after_load = mebibytes(entry, "rss_after_load_mib"),
                         .peak = mebibytes(entry, "rss_peak_mib")});
  }
  const std::int64_t first = summary.value("first_step", std::int64_t{0});
  if (first > 0) {
    run.events.push_back({.step = first, .what = "the last job went on from here"});
  }
  for (const auto& save : summary.value("saves", nlohmann::ordered_json::array())) {
    run.events.push_back({.step = save.value("step", std::int64_t{0}),
                          .what = concat("saved ",
                                         format_bytes(save.value("bytes", std::uint64_t{0})),
                                         " in ",
                                         format_seconds(save.value("seconds", 0.0)),
                                         ", steps waited ",
                                         format_seconds(save.value("blocked_s", 0.0)))});
  }
  const auto stopped = summary.find("stopped_by");
  const std::int64_t last = run.steps.empty() ? 0 : run.steps.back().step;
  run.events.push_back({.step = last,
                        .what = stopped != summary.end() && stopped->is_number()
                                    ? concat("ended by signal ", stopped->get<int>())
                                    : std::string("ended")});
}

/// Checkpoints that are there: also those of jobs that left no summary.
void read_checkpoints(const fs::path& directory, RunFiles& run) {
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, failed)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "step-";
    if (name.starts_with(kPrefix)) {
      run.events.push_back(
          {.step = std::atoll(name.c_str() + kPrefix.size()), .what = concat("checkpoint ", name, " is there")});
    }
  }
}

} // namespace

RunFiles read_run(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    throw InputError({.code = Code::kDirectoryNotFound,
                      .what = "the run's directory is not there",
                      .where = directory.string(),
                      .why = concat("expected a directory, got ",
                                    fs::exists(directory, ignored) ? "a file" : "nothing of that name"),
                      .fix = "pass the --out of a tieshard train"});
  }
  RunFiles run;
  read_steps(directory, run);
  read_summary(directory / "summary.json", run);
  read_checkpoints(directory / "checkpoints", run);
  for (const RunStep& step : run.steps) {
    if (step.skipped) {
      run.events.push_back({.step = step.step, .what = "skipped: a gradient was not finite"});
    }
    if (step.eval_loss) {
      run.events.push_back({.step = step.step, .what = concat("evaluated: loss ", *step.eval_loss)});
    }
  }
  std::ranges::stable_sort(run.events, {}, &RunEvent::step);
  const nlohmann::ordered_json flags = document_of(directory / "config.json");
  for (const auto& [key, value] : flags.items()) {
    run.flags.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return run;
}

} // namespace tieshard
