#include "tieshard/cli/verb_table.h"

#include <algorithm>
#include <sstream>

#include <CLI/App.hpp>

#include "tieshard/cli/runtime_program.h"

namespace tieshard::cli {
namespace {

/// "last|first" is a list; "NAME=D" and "N:from 1 to 8" are none.
std::vector<std::string> words_of(const std::string& value) {
  std::vector<std::string> words;
  if (value.find('|') == std::string::npos) {
    return words;
  }
  std::istringstream text(value);
  for (std::string word; std::getline(text, word, '|');) {
    const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    });
    if (plain) { // "N" of "true|false|N" stands for a number
      words.push_back(word);
    }
  }
  return words;
}

FlagEntry entry_of(const CLI::Option& option) {
  FlagEntry entry{.help = option.get_description(), .required = option.get_required()};
  entry.name = option.get_lnames().empty() ? option.get_name(true) : "--" + option.get_lnames().front();
  if (option.get_type_size() != 0) { // a flag takes nothing
    entry.value = option.get_type_name();
    entry.words = words_of(entry.value);
  }
  return entry;
}

} // namespace

std::vector<VerbEntry> verb_table(const CLI::App& app) {
  std::vector<VerbEntry> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    VerbEntry entry{.name = verb->get_name(), .help = verb->get_description(), .footer = verb->get_footer()};
    entry.computes = is_runtime_verb(entry.name);
    for (const CLI::Option* option : verb->get_options()) {
      if (option != verb->get_help_ptr()) {
        entry.flags.push_back(entry_of(*option));
      }
    }
    std::ranges::stable_partition(entry.flags, &FlagEntry::is_positional);
    verbs.push_back(std::move(entry));
  }
  return verbs;
}

} // namespace tieshard::cli
