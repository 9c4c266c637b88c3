// tieshard/cli/runtime/train_verb.h
//
// `tieshard train`: flags, the ranks, and what a person sees of a run.
//
// Flow: main -> [this] -> runtime/train/trainer.h

#pragma once

#include "tieshard/cli/report.h"

namespace tieshard::cli {

/// Adds the verb to `app`; its callback fills `chosen`.
void add_train(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli
