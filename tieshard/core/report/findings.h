// tieshard/core/report/findings.h
//
// What was found, with its remedy.
//
// Flow: model_report, run_report -> [this] -> html

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/base/error.h"

namespace tieshard {

/// Each finding as an article, in the order given; one sentence where there is none.
std::string html_findings(const std::vector<Diagnostic>& findings);

} // namespace tieshard
