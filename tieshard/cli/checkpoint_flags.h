// tieshard/cli/checkpoint_flags.h
//
// What the verbs that stream whole checkpoints share: --memory, --threads, and a bar whose total is known later.
//
// Flow: reshard, export, merge, doctor, diff -> [this] -> progress

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/cli/json_output.h"
#include "tieshard/cli/progress.h"
#include "tieshard/core/base/error.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace tieshard::cli {

/// Adds --memory SIZE and --threads N.
void add_memory_and_threads(CLI::App& verb, std::string& memory, int& threads);

void add_threads(CLI::App& verb, int& threads);

/// @throws InputError bad-flag (no size, or below 1 MiB)
std::uint64_t memory_flag(const std::string& text, std::uint64_t otherwise);

/// `asked`, or for 0 the processors, at most 8.
int threads_flag(int asked);

/// A Progress that begins with its first update.
class StageProgress {
 public:
  StageProgress(Console console, std::string label) : console_(console), label_(std::move(label)) {}

  void update(std::uint64_t done, std::uint64_t total);

  /// The end of the verb: `result` as JSON, or the summary and the findings.
  void show(bool json, const OrderedJson& result, std::string_view summary, const std::vector<Diagnostic>& findings);

 private:
  Console console_;
  std::string label_;
  std::optional<Progress> progress_;
};

} // namespace tieshard::cli
