// tieshard/cli/runtime/generate_verb.h
//
// `tieshard generate`: a text goes on, so that a person can see that a model still speaks.
//
// Flow: main -> [this] -> tokenizer, runtime/generate/generate.h

#pragma once

#include "tieshard/cli/report.h"

namespace tieshard::cli {

/// Adds the verb to `app`; its callback fills `chosen`.
void add_generate(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli
