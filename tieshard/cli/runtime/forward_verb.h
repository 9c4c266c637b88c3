// tieshard/cli/runtime/forward_verb.h
//
// `tieshard forward`: a checkpoint's logits for given tokens, as a file that other programs can compare with.
//
// Flow: main -> [this] -> runtime/train/parallelize.h

#pragma once

#include "tieshard/cli/report.h"

namespace tieshard::cli {

/// Adds the verb to `app`; its callback fills `chosen`.
void add_forward(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli
