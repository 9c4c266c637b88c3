// tieshard/cli/flags.h
//
// Flags whose values have a form of their own.
//
// Flow: ties, plan -> [this]

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tieshard/cli/model_view.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
class Validator;
} // namespace CLI

namespace tieshard::cli {

/// Adds a flag that takes one value and may be given several times.
void add_repeated(CLI::App& verb,
                  const std::string& flag,
                  std::vector<std::string>& values,
                  const std::string& value_name,
                  const std::string& help);

/// Checks of a flag's text, for CLI::Option::check. What fails becomes the error bad-flag, whose `why` says what was
/// expected and got: every flag that takes a number has one of the first four, so that no text reaches CLI11's own
/// conversion, which reads 010 as 8.
CLI::Validator whole_number(std::int64_t least, std::int64_t most);
CLI::Validator finite_number_from(double least);
CLI::Validator number_above(double bound); ///< infinity is one
CLI::Validator number_from_to_below(double least, double bound);
CLI::Validator one_of(const std::vector<std::string>& words);

/// Of a flag whose absence means something: an empty text (an unset variable of a shell) is not its absence.
CLI::Validator any_text(const std::string& expected);

/// --tie ALIAS=CANONICAL. @throws InputError bad-flag when a value has another form or an alias stands twice
std::map<std::string, std::string> declared_ties(const std::vector<std::string>& values);

/// --dim NAME=D. @throws InputError bad-flag when a value has another form or a name stands twice
std::map<std::string, int> declared_dims(const std::vector<std::string>& values);

} // namespace tieshard::cli
