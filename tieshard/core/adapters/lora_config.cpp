#include "tieshard/core/adapters/lora_config.h"

#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json.h"

namespace tieshard {
namespace {

/// Fields that say nothing of what the adapter computes.
const std::set<std::string, std::less<>>& neutral_fields() {
  static const std::set<std::string, std::less<>> fields{"auto_mapping",
                                                         "base_model_name_or_path",
                                                         "inference_mode",
                                                         "megatron_core",
                                                         "peft_type",
                                                         "peft_version",
                                                         "qalora_group_size",
                                                         "revision",
                                                         "task_type"};
  return fields;
}

/// A field of one file, with what is said when it cannot be used.
class Field {
 public:
  Field(const Json& document, std::string where, std::string name)
      : where_(std::move(where)),
        name_(std::move(name)),
        value_(document.contains(name_) ? document.at(name_) : Json()) {}

  bool absent() const {
    return value_.is_null();
  }
  const Json& value() const {
    return value_;
  }

  [[noreturn]] void refuse(const std::string& expected, const std::string& fix) const {
    throw InputError({.code = Code::kAdapterConfig,
                      .what = "a field of an adapter's configuration cannot be honoured",
                      .where = concat(where_, ", ", name_),
                      .why = concat("expected ", expected, ", got ", value_.dump()),
                      .fix = fix});
  }
  [[noreturn]] void refuse(const std::string& expected) const {
    refuse(expected, "correct the field");
  }

  std::int64_t positive_integer(std::int64_t fallback) const {
    if (absent()) {
      return fallback;
    }
    const std::int64_t number = value_.is_number_integer() ? value_.get<std::int64_t>() : 0;
    if (number < 1 || number > kLargestLoraRank) {
      refuse(concat("a whole number from 1 to ", kLargestLoraRank));
    }
    return number;
  }

  double number(double fallback, double least, double below) const {
    if (absent()) {
      return fallback;
    }
    const double number = value_.is_number() ? value_.get<double>() : std::nan("");
    if (!(number >= least && number < below)) {
      refuse(below < 2 ? "a number from 0 to below 1" : "a number of at least 0");
    }
    return number;
  }

  bool boolean() const {
    if (absent()) {
      return false;
    }
    if (!value_.is_boolean()) {
      refuse("true or false");
    }
    return value_.get<bool>();
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    if (value_.is_string()) {
      return {value_.get<std::string>()};
    }
    for (const Json& name : absent() ? Json::array() : value_) {
      if (!value_.is_array() || !name.is_string() || name.get<std::string>().empty()) {
        refuse("a list of names");
      }
      names.push_back(name.get<std::string>());
    }
    return names;
  }

  /// A text is a regular expression, but for "all-linear".
  ModulePattern pattern() const {
    if (!value_.is_string()) {
      return {.names = names()};
    }
    const auto text = value_.get<std::string>();
    return text == "all-linear" ? ModulePattern{.all_linear = true} : ModulePattern{.regex = text};
  }

 private:
  std::string where_;
  std::string name_;
  Json value_;
};

void require_lora(const Field& type) {
  if (type.value() != "LORA") {
    type.refuse("\"LORA\"", "merge the adapter with PEFT (merge_and_unload), or train a LoRA adapter");
  }
}

/// What no code here reads has to be as if it were not there.
void require_neutral(const Field& field, const std::string& name) {
  const Json& value = field.value();
  const bool unused = value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
  if (!unused && !(name == "bias" && value == "none")) {
    field.refuse(name == "bias" ? "\"none\"" : "null, false or nothing in it: this feature is not supported",
                 "merge the adapter with PEFT (merge_and_unload), or train one without this feature");
  }
}

LoraInit parse_init(const Field& field) {
  const Json& value = field.value();
  if (value == "gaussian") {
    return LoraInit::kGaussian;
  }
  if (!field.absent() && !value.is_boolean() && value != "orthogonal" && value != "eva") {
    field.refuse("true, false, \"gaussian\", \"orthogonal\" or \"eva\", which leave the base as it is",
                 "convert the adapter with PEFT (path_initial_model_for_weight_conversion), or merge it there");
  }
  return LoraInit::kKaiming;
}

template <typename Value, typename Parse>
std::map<std::string, Value> parse_patterns(const Json& document,
                                            const std::string& where,
                                            const std::string& name,
                                            const Parse& parse) {
  std::map<std::string, Value> values;
  const Field field(document, where, name);
  if (field.absent()) {
    return values;
  }
  if (!field.value().is_object()) {
    field.refuse("an object of patterns");
  }
  for (const auto& [pattern, value] : field.value().items()) {
    if (value.is_null()) {
      field.refuse("a number for each pattern");
    }
    values[pattern] = parse(Field(field.value(), concat(where, ", ", name), pattern));
  }
  return values;
}

std::vector<std::int64_t> parse_layers(const Field& field) {
  std::vector<std::int64_t> layers;
  const Json listed = field.value().is_number() ? Json::array({field.value()}) : field.value();
  for (const Json& layer : field.absent() ? Json::array() : listed) {
    if (!listed.is_array() || !layer.is_number_integer() || layer.get<std::int64_t>() < 0) {
      field.refuse("a whole number, or a list of them");
    }
    layers.push_back(layer.get<std::int64_t>());
  }
  return layers;
}

nlohmann::ordered_json pattern_json(const ModulePattern& pattern) {
  if (pattern.all_linear) {
    return "all-linear";
  }
  if (!pattern.regex.empty()) {
    return pattern.regex;
  }
  return pattern.names.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(pattern.names);
}

/// 32, and not 32.0, where that is what it is: PEFT's alpha is an integer.
nlohmann::ordered_json number_json(double number) {
  const bool whole = number == std::floor(number) && std::abs(number) < 1e15;
  return whole ? nlohmann::ordered_json(static_cast<std::int64_t>(number)) : nlohmann::ordered_json(number);
}

template <typename Values>
nlohmann::ordered_json list_or_null(const Values& values) {
  return values.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(values);
}

} // namespace

LoraConfig LoraConfig::parse(std::string_view text, const std::string& where) {
  const Json document = parse_json(text, where);
  if (!document.is_object()) {
    throw InputError({.code = Code::kAdapterConfig,
                      .what = "an adapter's configuration is not a JSON object",
                      .where = where,
                      .fix = "save the adapter again with PEFT or tieshard"});
  }
  const auto field = [&](const char* name) { return Field(document, where, name); };
  require_lora(field("peft_type"));
  const auto rank = [](const Field& value) { return value.positive_integer(0); };
  const auto alpha = [](const Field& value) { return value.number(0, 0, HUGE_VAL); };
  LoraConfig config{.rank = field("r").positive_integer(8),
                    .alpha = field("lora_alpha").number(8, 0, HUGE_VAL),
                    .dropout = field("lora_dropout").number(0, 0, 1),
                    .rslora = field("use_rslora").boolean(),
                    .targets = field("target_modules").pattern(),
                    .excluded = field("exclude_modules").pattern(),
                    .modules_to_save = field("modules_to_save").names(),
                    .layers_to_transform = parse_layers(field("layers_to_transform")),
                    .layers_pattern = field("layers_pattern").names(),
                    .rank_pattern = parse_patterns<std::int64_t>(document, where, "rank_pattern", rank),
                    .alpha_pattern = parse_patterns<double>(document, where, "alpha_pattern", alpha),
                    .tied = field("ensure_weight_tying").boolean() ? TiedTarget::kBoth : TiedTarget::kRefuse,
                    .init = parse_init(field("init_lora_weights")),
                    .every_name_matches = false};
  if (config.targets.empty()) {
    field("target_modules").refuse("names of modules, a regular expression or \"all-linear\"");
  }
  if (!config.layers_to_transform.empty() && config.targets.names.empty()) {
    field("layers_to_transform").refuse("null beside target_modules that are no list");
  }
  const Field base = field("base_model_name_or_path");
  config.base_model = base.value().is_string() ? base.value().get<std::string>() : "";
  static const std::set<std::string, std::less<>> read{"r",
                                                       "lora_alpha",
                                                       "lora_dropout",
                                                       "use_rslora",
                                                       "target_modules",
                                                       "exclude_modules",
                                                       "modules_to_save",
                                                       "layers_to_transform",
                                                       "layers_pattern",
                                                       "rank_pattern",
                                                       "alpha_pattern",
                                                       "ensure_weight_tying",
                                                       "init_lora_weights"};
  for (const auto& [name, value] : document.items()) {
    if (!read.contains(name) && !neutral_fields().contains(name)) {
      require_neutral(field(name.c_str()), name);
    }
  }
  return config;
}

std::string LoraConfig::to_json() const {
  nlohmann::ordered_json alphas = nlohmann::ordered_json::object();
  for (const auto& [pattern, value] : alpha_pattern) {
    alphas[pattern] = number_json(value);
  }
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object();
  for (const auto& [pattern, value] : rank_pattern) {
    ranks[pattern] = value;
  }
  nlohmann::ordered_json started = true;
  if (init == LoraInit::kGaussian) {
    started = "gaussian";
  }
  nlohmann::ordered_json document{
      {"alpha_pattern", alphas},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", base_model.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(base_model)},
      {"bias", "none"},
      {"exclude_modules", pattern_json(excluded)},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", started},
      {"layers_pattern", list_or_null(layers_pattern)},
      {"layers_to_transform", list_or_null(layers_to_transform)},
      {"lora_alpha", number_json(alpha)},
      {"lora_dropout", dropout},
      {"modules_to_save", list_or_null(modules_to_save)},
      {"peft_type", "LORA"},
      {"r", rank},
      {"rank_pattern", ranks},
      {"revision", nullptr},
      {"target_modules", pattern_json(targets)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", rslora}};
  if (tied == TiedTarget::kBoth) { // a PEFT from before this field would not know it
    document["ensure_weight_tying"] = true;
  }
  return document.dump(2) + "\n";
}

} // namespace tieshard
