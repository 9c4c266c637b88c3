// tieshard/cli/config_file.h
//
// `--config FILE`: the flags of a verb as a JSON object, and a verb's flags as they are in force.
//
// Flow: report (run_command_line) -> [this]; train_verb -> [this] -> OUT/config.json

#pragma once

#include <string>
#include <vector>

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace tieshard::cli {

/// Adds --config to a verb. Its value is read by with_config_file, before the line is parsed.
void add_config_flag(CLI::App& verb);

/// A command line without the program's name, with the flags of its --config file where its verb has that flag. A flag
/// that the line itself has is left out of the file's: the line wins. Relative paths in a file are the caller's, as on
/// the line.
///
/// The file is one JSON object: "steps": 200, "lora": "r=8", "no-shuffle": true, "param-groups": ["no_decay", ...]. A
/// switch takes true or false, a flag that may be repeated also an array.
/// @throws InputError bad-flag (a key that is no flag, with the closest ones; a value that its flag cannot take), what
///         read_text_file and parse_json throw
std::vector<std::string> with_config_file(const CLI::App& app, std::vector<std::string> line);

/// The flags of a parsed verb that have a value, given or by default, as such an object. Read back, it is the same run.
std::string flags_in_force(const CLI::App& verb);

} // namespace tieshard::cli
