// tieshard/cli/completion.h
//
// `tieshard completion SHELL`: a script by which the shell completes verbs, flags and their words.
//
// Flow:   app -> [this] -> verb_table
// Source: the programmable completion of bash, zsh (bashcompinit) and fish, from their manuals.

#pragma once

#include <string>
#include <vector>

#include "tieshard/cli/report.h"
#include "tieshard/cli/verb_table.h"

namespace tieshard::cli {

/// @param shell  "bash", "zsh" or "fish"
/// The flags of a verb that computes are asked of its --help when they are wanted: only tieshard-runtime knows them.
std::string completion_script(const std::vector<VerbEntry>& verbs, const std::string& shell);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_completion(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli
