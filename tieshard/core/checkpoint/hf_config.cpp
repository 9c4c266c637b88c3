#include "tieshard/core/checkpoint/hf_config.h"

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/config_field.h"

namespace tieshard {
namespace {

/// A field of the top level or else of text_config, where wrappers of a text model keep it.
FoundField find_also_nested(const Json& document, std::string_view key) {
  if (const Json* value = config_member(document, key)) {
    return {.value = value, .path = std::string(key)};
  }
  if (const Json* text_config = config_member(document, "text_config")) {
    if (const Json* value = config_member(*text_config, key)) {
      return {.value = value, .path = concat("text_config.", key)};
    }
  }
  return {};
}

std::optional<DType> parse_dtype(const Json& document, const std::string& where) {
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    const FoundField found = find_also_nested(document, key);
    if (found.value == nullptr) {
      continue;
    }
    const std::string text = config_text(where, found.path, *found.value);
    if (text == "auto") { // "as stored": says nothing
      return std::nullopt;
    }
    const std::optional<DType> dtype = dtype_from_torch_name(text);
    if (!dtype) {
      refuse_config_value(where, found.path, "a floating dtype such as \"bfloat16\"", *found.value);
    }
    return dtype;
  }
  return std::nullopt;
}

std::string parse_architecture(const Json& document, const std::string& where) {
  const Json* names = config_member(document, "architectures");
  if (names == nullptr) {
    return {};
  }
  if (!names->is_array()) {
    refuse_config_value(where, "architectures", "a list of class names", *names);
  }
  return names->empty() ? std::string() : config_text(where, "architectures", names->front());
}

/// What holds fields of its own has to be an object: read as something else, its fields would be missed in silence.
void require_objects(const Json& document, const std::string& where) {
  for (const std::string_view key : {"text_config", "quantization_config"}) {
    const Json* value = config_member(document, key);
    if (value != nullptr && !value->is_object()) {
      refuse_config_value(where, key, "an object", *value);
    }
  }
}

Json parse_document(std::string_view text, const std::string& where) {
  try {
    return parse_json(text, where);
  } catch (const InputError& error) {
    Diagnostic diagnostic = error.diagnostic();
    diagnostic.code = Code::kConfigMalformed;
    diagnostic.why = concat(diagnostic.why, " [", id(error.diagnostic().code), "]");
    throw InputError(diagnostic);
  }
}

} // namespace

HfConfig HfConfig::parse(std::string_view text, const std::string& where) {
  HfConfig config;
  config.json_ = std::make_shared<const Json>(parse_document(text, where));
  config.where_ = where;
  const Json& document = *config.json_;
  if (!document.is_object()) {
    throw InputError({.code = Code::kConfigMalformed,
                      .what = "config.json is not a JSON object",
                      .where = where,
                      .why = concat("expected an object, got ", document.type_name()),
                      .fix = "restore the config.json of the original model"});
  }
  require_objects(document, where);
  config.model_type_ = config.string_or("model_type", "");
  config.architecture_ = parse_architecture(document, where);
  config.dtype_ = parse_dtype(document, where);
  const FoundField flag = find_also_nested(document, "tie_word_embeddings");
  if (flag.value != nullptr) {
    config.tie_flag_ = TieFlag{.value = config_boolean(where, flag.path, *flag.value), .where = flag.path};
  }
  return config;
}

std::int64_t HfConfig::integer(std::string_view key) const {
  if (const std::optional<std::int64_t> value = optional_integer(key)) {
    return *value;
  }
  refuse_missing_field(where_, key, "an integer");
}

std::int64_t HfConfig::integer_or(std::string_view key, std::int64_t fallback) const {
  return optional_integer(key).value_or(fallback);
}

std::optional<std::int64_t> HfConfig::optional_integer(std::string_view key) const {
  const Json* value = config_member(*json_, key);
  return value == nullptr ? std::nullopt : std::optional(config_integer(where_, key, *value));
}

double HfConfig::number_or(std::string_view key, double fallback) const {
  const Json* value = config_member(*json_, key);
  return value == nullptr ? fallback : config_number(where_, key, *value);
}

bool HfConfig::boolean_or(std::string_view key, bool fallback) const {
  const Json* value = config_member(*json_, key);
  return value == nullptr ? fallback : config_boolean(where_, key, *value);
}

std::string HfConfig::string_or(std::string_view key, std::string_view fallback) const {
  const Json* value = config_member(*json_, key);
  return value == nullptr ? std::string(fallback) : config_text(where_, key, *value);
}

bool HfConfig::has(std::string_view key) const {
  return config_member(*json_, key) != nullptr;
}

} // namespace tieshard
