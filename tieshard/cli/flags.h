// tieshard/cli/flags.h
//
// Flags whose values have a form of their own.
//
// Flow: ties, plan -> [this]

#pragma once

#include <map>
#include <string>
#include <vector>

#include "tieshard/cli/model_view.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace tieshard::cli {

/// Adds a flag that takes one value and may be given several times.
void add_repeated(CLI::App& verb,
                  const std::string& flag,
                  std::vector<std::string>& values,
                  const std::string& value_name,
                  const std::string& help);

/// --tie ALIAS=CANONICAL. @throws InputError bad-flag when a value has another form or an alias stands twice
std::map<std::string, std::string> declared_ties(const std::vector<std::string>& values);

/// --dim NAME=D. @throws InputError bad-flag when a value has another form or a name stands twice
std::map<std::string, int> declared_dims(const std::vector<std::string>& values);

} // namespace tieshard::cli
