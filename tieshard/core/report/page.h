// tieshard/core/report/page.h
//
// The whole document around the sections: one file, no script, nothing that is fetched; light or dark as the reader's
// system is.
//
// Flow: model_report, run_report -> [this]

#pragma once

#include <string>
#include <string_view>

namespace tieshard {

/// What every page begins with, by which an earlier one is known.
inline constexpr std::string_view kPageBegin = "<!doctype html>\n<html lang=\"en\">\n<head>\n";

/// @param title  text, of the document and of its first heading
/// @param lead   HTML under the heading
/// @param body   HTML, sections
std::string html_page(std::string_view title, const std::string& lead, const std::string& body);

/// A word in a box whose colour says how good it is. @param kind  "good", "warning", "error" or "note"
std::string html_badge(std::string_view kind, std::string_view text);

} // namespace tieshard
