// tieshard/cli/man_page.h
//
// `tieshard man`: the manual page, made of what --help prints.
//
// Flow:   app -> [this] -> verb_table
// Source: man-pages(7) for the sections, groff_man(7) for the macros.

#pragma once

#include <string>
#include <vector>

#include "tieshard/cli/report.h"
#include "tieshard/cli/verb_table.h"

namespace tieshard::cli {

/// tieshard(1) in roff.
/// @param about     what the program is, one sentence
/// @param examples  the footer of its help, with the examples and the exit status
std::string man_page(const std::vector<VerbEntry>& verbs, const std::string& about, const std::string& examples);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_man(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli
