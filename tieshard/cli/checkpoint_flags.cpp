#include "tieshard/cli/checkpoint_flags.h"

#include <algorithm>
#include <thread>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"
#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

constexpr std::uint64_t kLeastMemory = 1 << 20;

} // namespace

void add_memory_and_threads(CLI::App& verb, std::string& memory, int& threads) {
  verb.add_option("--memory", memory, "The most that buffers take (default 128MiB, at least 1MiB)")->type_name("SIZE");
  add_threads(verb, threads);
}

void add_threads(CLI::App& verb, int& threads) {
  verb.add_option("--threads", threads, "Threads that read, hash and write (default: the processors, at most 8)")
      ->type_name("N")
      ->check(whole_number(1, 1024).description("from 1 to 1024"));
}

std::uint64_t memory_flag(const std::string& text, std::uint64_t otherwise) {
  const std::uint64_t memory = text.empty() ? otherwise : size_flag("--memory", text);
  if (memory < kLeastMemory) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has a value that cannot be used",
                      .where = "--memory",
                      .why = concat("expected at least 1MiB, got ", text),
                      .fix = "give the buffers more memory"});
  }
  return memory;
}

int threads_flag(int asked) {
  return asked > 0 ? asked : static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 8U));
}

void StageProgress::update(std::uint64_t done, std::uint64_t total) {
  if (!progress_) {
    progress_.emplace(console_, label_, total);
  }
  progress_->update(done);
}

void StageProgress::show(bool json,
                         const OrderedJson& result,
                         std::string_view summary,
                         const std::vector<Diagnostic>& findings) {
  if (json) {
    progress_.reset(); // erases the bar
    print_json(console_.out, result);
    return;
  }
  if (!progress_) { // nothing had to be moved
    progress_.emplace(console_, label_, 0);
  }
  progress_->finish(summary);
  print_findings(console_.err, findings);
}

} // namespace tieshard::cli
