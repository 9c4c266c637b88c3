// tieshard/cli/verb_table.h
//
// The verbs and flags of the program as data: what completion and man page are made of, read from what --help prints.
//
// Flow: app -> [this] -> completion, man_page

#pragma once

#include <string>
#include <vector>

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace tieshard::cli {

struct FlagEntry {
  std::string name{};               ///< "--ranks", or of a positional "DIR"
  std::string value{};              ///< what it takes, as the help shows it: "N:from 1 to 65536"; empty: nothing
  std::vector<std::string> words{}; ///< all that it may take, where that is a list
  std::string help{};
  bool required = false;

  bool is_positional() const {
    return !name.starts_with("-");
  }
};

struct VerbEntry {
  std::string name{};
  std::string help{};
  std::string footer{};
  std::vector<FlagEntry> flags{}; ///< positionals first; without --help
  bool computes = false;          ///< of tieshard-runtime, which alone knows its flags
  std::string usage{};            ///< of such a verb what its --help prints, where it was asked
};

/// In the order of the help.
std::vector<VerbEntry> verb_table(const CLI::App& app);

} // namespace tieshard::cli
