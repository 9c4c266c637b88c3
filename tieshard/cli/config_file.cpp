#include "tieshard/cli/config_file.h"

#include <algorithm>
#include <optional>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "tieshard/cli/closest_names.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/json.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

constexpr const char* kFlag = "--config";

const CLI::App* find_verb(const CLI::App& app, const std::vector<std::string>& line) {
  const auto asked = [&](const CLI::App* candidate) { return !line.empty() && candidate->get_name() == line.front(); };
  const std::vector<const CLI::App*> found = app.get_subcommands(asked);
  return found.empty() ? nullptr : found.front();
}

/// The value of --config on the line. Nothing where it is not there, or has none: the parser says so then.
std::optional<std::string> config_path(const std::vector<std::string>& line) {
  for (std::size_t index = 0; index < line.size(); ++index) {
    if (line[index] == kFlag && index + 1 < line.size()) {
      return line[index + 1];
    }
    if (line[index].starts_with("--config=")) {
      return line[index].substr(std::string("--config=").size());
    }
  }
  return std::nullopt;
}

bool is_given(const std::vector<std::string>& line, const std::string& flag) {
  return std::ranges::any_of(line,
                             [&](const std::string& word) { return word == flag || word.starts_with(flag + "="); });
}

bool is_switch(const CLI::Option& option) {
  return option.get_items_expected_max() == 0;
}

/// `--resume` may stand without a value.
bool may_stand_alone(const CLI::Option& option) {
  return option.get_items_expected_min() == 0;
}

/// "steps" of --steps; empty for an option that a file does not hold.
std::string key_of(const CLI::Option& option) {
  const std::vector<std::string>& names = option.get_lnames();
  return names.empty() || names.front() == "help" || names.front() == "config" ? "" : names.front();
}

/// The flags of one file on the way to words of a command line.
class FileFlags {
 public:
  FileFlags(const CLI::App& verb, const std::string& path) : verb_(verb), path_(path) {}

  std::vector<std::string> words(const std::vector<std::string>& line) {
    const Json document = parse_json(read_text_file(path_), path_);
    if (!document.is_object()) {
      throw refusal("", "expected one JSON object of flags, got something else", R"(write {"steps": 200, ...})");
    }
    for (const auto& [key, value] : document.items()) {
      const CLI::Option& option = find(key);
      if (!is_given(line, "--" + key)) {
        add(key, value, option);
      }
    }
    return words_;
  }

 private:
  InputError refusal(const std::string& key, const std::string& why, const std::string& fix) const {
    return InputError({.code = Code::kBadFlag,
                       .what = "a configuration file cannot be used",
                       .where = key.empty() ? path_ : concat(path_, ", ", format_name(key)),
                       .why = why,
                       .fix = fix});
  }

  const CLI::Option& find(const std::string& key) const {
    std::vector<std::string> keys;
    for (const CLI::Option* option : verb_.get_options()) {
      const std::string name = key_of(*option);
      if (!name.empty() && name == key) {
        return *option;
      }
      if (!name.empty()) {
        keys.push_back(name);
      }
    }
    throw refusal(key,
                  concat("expected a flag of ", verb_.get_name(), " without its dashes, got ", format_name(key)),
                  concat("did you mean ",
                         format_names(closest_names(key, keys, 3)),
                         "? `tieshard ",
                         verb_.get_name(),
                         " --help` lists all"));
  }

  void add(const std::string& key, const Json& value, const CLI::Option& option) {
    if (value.is_boolean() && (is_switch(option) || may_stand_alone(option))) {
      if (value.get<bool>()) {
        words_.push_back("--" + key);
      }
      return;
    }
    if (is_switch(option)) {
      throw refusal(key, concat("expected true or false, got ", value.dump()), "write one of the two");
    }
    if (!value.is_array()) {
      add_value(key, value);
      return;
    }
    if (option.get_items_expected_max() <= 1) {
      throw refusal(key, "expected one value, got an array", "write the value alone");
    }
    for (const Json& element : value) {
      add_value(key, element);
    }
  }

  void add_value(const std::string& key, const Json& value) {
    if (value.is_structured() || value.is_null()) {
      throw refusal(key,
                    concat("expected a text, a number, true or false, got ", value.type_name()),
                    "write one such value, or leave the key out");
    }
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.empty()) { // as an empty variable of a shell: the flag's own check refuses it
      words_.insert(words_.end(), {"--" + key, ""});
    } else {
      words_.push_back(concat("--", key, "=", text));
    }
  }

  const CLI::App& verb_;
  const std::string& path_;
  std::vector<std::string> words_;
};

/// A number where the text is one in JSON too, so that a reader need not convert it.
nlohmann::ordered_json json_of(const std::string& text) {
  const auto parsed = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool same = parsed.is_number() && parsed.dump() == text;
  return same ? parsed : nlohmann::ordered_json(text);
}

} // namespace

void add_config_flag(CLI::App& verb) {
  verb.add_option(kFlag, "JSON file of flags, {\"steps\": 200, ...}; those of the line win (docs/training.md)")
      ->type_name("FILE");
}

std::vector<std::string> with_config_file(const CLI::App& app, std::vector<std::string> line) {
  const CLI::App* verb = find_verb(app, line);
  const std::optional<std::string> path = config_path(line);
  if (verb == nullptr || !path || verb->get_option_no_throw(kFlag) == nullptr) {
    return line;
  }
  const std::vector<std::string> words = FileFlags(*verb, *path).words(line);
  line.insert(line.begin() + 1, words.begin(), words.end());
  return line;
}

std::string flags_in_force(const CLI::App& verb) {
  nlohmann::ordered_json flags = nlohmann::ordered_json::object();
  for (const CLI::Option* option : verb.get_options()) {
    const std::string key = key_of(*option);
    const std::vector<std::string>& given = option->results();
    if (key.empty() || (given.empty() && option->get_default_str().empty())) {
      continue;
    }
    if (is_switch(*option) || (may_stand_alone(*option) && (given.empty() || given.front().empty()))) {
      flags[key] = true;
    } else if (option->get_items_expected_max() > 1) {
      flags[key] = given;
    } else {
      flags[key] = json_of(given.empty() ? option->get_default_str() : given.front());
    }
  }
  return flags.dump(2) + "\n";
}

} // namespace tieshard::cli
