// tieshard/cli/runtime/eval_verb.h
//
// `tieshard eval`: loss and perplexity of a token file.
//
// Flow: main -> [this] -> runtime/train/evaluation.h

#pragma once

#include "tieshard/cli/report.h"

namespace tieshard::cli {

/// Adds the verb to `app`; its callback fills `chosen`.
void add_eval(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli
