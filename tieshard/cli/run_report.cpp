#include "tieshard/cli/run_report.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/report/page.h"
#include "tieshard/core/report/run_files.h"
#include "tieshard/core/report/run_report.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;

InputError bad_file(const std::string& file, const std::string& why, const char* fix) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag has a value that cannot be used",
                     .where = concat("--html ", file),
                     .why = why,
                     .fix = fix});
}

/// Nothing, an empty file or an earlier page: what may be written over.
bool is_replaceable(const fs::path& path) {
  std::string begin(kPageBegin.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return file.gcount() == 0 || begin == kPageBegin;
}

/// A terminal, /dev/null, a FIFO: written to, and never replaced.
void write_through(const fs::path& path, const std::string& file, const std::string& page) {
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out << page << std::flush;
  if (!out) {
    throw bad_file(file, "expected a file that can be written, and writing failed", "name another file");
  }
}

void warn_of_bad_lines(const RunFiles& run, const std::string& directory, const Console& console) {
  if (run.bad_lines == 0) {
    return;
  }
  print_diagnostic(console.err,
                   {.level = Level::kWarning,
                    .code = Code::kJsonMalformed,
                    .what = "lines of a run's metrics are no steps",
                    .where = (fs::path(directory) / "metrics.jsonl").string(),
                    .why = concat("expected a JSON object with a step in each line, got ",
                                  run.bad_lines,
                                  run.bad_lines == 1 ? " line that has none and " : " lines that have none and ",
                                  run.steps.size(),
                                  run.steps.size() == 1 ? " step" : " steps"),
                    .fix = "a killed run may leave one torn line; of more, look whether the file is a run's"});
}

} // namespace

void write_page(const std::string& page, const std::string& file, const Console& console) {
  if (file == "-") {
    console.out.text << page;
    return;
  }
  std::error_code ignored;
  fs::path path(file);
  if (fs::is_symlink(path, ignored)) {
    path = fs::weakly_canonical(path, ignored); // the link stays one
  }
  if (fs::is_directory(path, ignored)) {
    throw bad_file(file, "expected a file, got a directory", "name a file in it");
  }
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) {
    write_through(path, file, page);
    return;
  }
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(parent, ignored)) {
    throw bad_file(file,
                   concat("expected a name in a directory that is there, got no directory ", parent.string()),
                   "make the directory, or name a file in another");
  }
  if (fs::exists(path, ignored) && !is_replaceable(path)) {
    throw bad_file(file, "expected a new file or an earlier page, got a file of another kind", "name a new file");
  }
  write_text_file(path, page);
}

int run_report_verb(const RunReportOptions& options, const Console& console) {
  const std::string file = options.html.empty() ? (fs::path(options.directory) / "report.html").string() : options.html;
  const RunFiles run = read_run(options.directory);
  write_page(run_report(run, options.directory), file, console);
  warn_of_bad_lines(run, options.directory, console);
  if (file != "-") {
    console.out.text << file << "\n";
  }
  return kExitSuccess;
}

void add_report(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<RunReportOptions>();
  CLI::App* verb = app.add_subcommand("report", "Show a training run as a page: curves, memory, events");
  verb->add_option("OUT", options->directory, "Directory of a run, finished, running or killed")->required();
  verb->add_option("--html", options->html, "File for the page (default: OUT/report.html); - for standard output")
      ->type_name("FILE")
      ->check(any_text("a file"));
  verb->footer(
      "Examples:\n"
      "  tieshard report runs/a\n"
      "  tieshard report runs/a --html - > a.html");
  verb->callback([options, &chosen] {
    chosen = [options](const Console& console) { return run_report_verb(*options, console); };
  });
}

} // namespace tieshard::cli
