#include "tieshard/cli/run_report.h"

#include <filesystem>
#include <memory>
#include <system_error>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/report/run_report.h"

namespace tieshard::cli {

void write_page(const std::string& page, const std::string& file, const Console& console) {
  if (file == "-") {
    console.out.text << page;
    return;
  }
  const std::filesystem::path path(file);
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code ignored;
  if (!std::filesystem::is_directory(parent, ignored) || std::filesystem::is_directory(path, ignored)) {
    throw InputError(
        {.code = Code::kBadFlag,
         .what = "a command line flag has a value that cannot be used",
         .where = concat("--html ", file),
         .why = std::filesystem::is_directory(path, ignored)
                    ? std::string("expected a file, got a directory")
                    : concat("expected a name in a directory that is there, got no directory ", parent.string()),
         .fix = "make the directory, or name a file in another"});
  }
  write_text_file(path, page);
}

int run_report_verb(const RunReportOptions& options, const Console& console) {
  const std::string file =
      options.html.empty() ? (std::filesystem::path(options.directory) / "report.html").string() : options.html;
  write_page(run_report(read_run(options.directory), options.directory), file, console);
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
