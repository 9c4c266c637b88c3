#include "tieshard/core/checkpoint/hf_config.h"

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::int64_t kMaxInteger = std::int64_t{1} << 40;

/// The member `key` of an object, or null when it is absent, null, or `object` is no object.
const Json* member(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

[[noreturn]] void throw_value(const std::string& where, std::string_view key, const char* expected, const Json& got) {
  throw InputError(
      {.code = Code::kConfigValue,
       .what = "a field of config.json has a value that cannot be used",
       .where = concat(where, ", ", format_name(key)),
       .why = concat(
           "expected ", expected, ", got ", format_name(got.dump(-1, ' ', false, Json::error_handler_t::replace))),
       .fix = concat("correct ", format_name(key), ", or restore the config.json of the original model")});
}

std::int64_t to_integer(const std::string& where, std::string_view key, const Json& value) {
  // A number above 2^63 is held unsigned, and reads as negative.
  if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    if (number >= 0 && number <= kMaxInteger) {
      return number;
    }
  }
  throw_value(where, key, "an integer from 0 to 2^40", value);
}

double to_number(const std::string& where, std::string_view key, const Json& value) {
  if (!value.is_number()) {
    throw_value(where, key, "a number", value);
  }
  return value.get<double>();
}

bool to_boolean(const std::string& where, std::string_view key, const Json& value) {
  if (!value.is_boolean()) {
    throw_value(where, key, "true or false", value);
  }
  return value.get<bool>();
}

std::string to_text(const std::string& where, std::string_view key, const Json& value) {
  if (!value.is_string()) {
    throw_value(where, key, "a string", value);
  }
  return value.get<std::string>();
}

/// A field of the top level or else of text_config, where wrappers of a text model keep it.
struct FoundField {
  const Json* value = nullptr;
  std::string path;
};

FoundField find_also_nested(const Json& document, std::string_view key) {
  if (const Json* value = member(document, key)) {
    return {value, std::string(key)};
  }
  if (const Json* text_config = member(document, "text_config")) {
    if (const Json* value = member(*text_config, key)) {
      return {value, concat("text_config.", key)};
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
    const std::string text = to_text(where, found.path, *found.value);
    if (text == "auto") { // "as stored": says nothing
      return std::nullopt;
    }
    const std::optional<DType> dtype = dtype_from_torch_name(text);
    if (!dtype) {
      throw_value(where, found.path, "a floating dtype such as \"bfloat16\"", *found.value);
    }
    return dtype;
  }
  return std::nullopt;
}

std::string parse_architecture(const Json& document, const std::string& where) {
  const Json* names = member(document, "architectures");
  if (names == nullptr) {
    return {};
  }
  if (!names->is_array()) {
    throw_value(where, "architectures", "a list of class names", *names);
  }
  return names->empty() ? std::string() : to_text(where, "architectures", names->front());
}

/// What holds fields of its own has to be an object: read as something else, its fields would be missed in silence.
void require_objects(const Json& document, const std::string& where) {
  for (const std::string_view key : {"text_config", "quantization_config"}) {
    const Json* value = member(document, key);
    if (value != nullptr && !value->is_object()) {
      throw_value(where, key, "an object", *value);
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
    config.tie_flag_ = TieFlag{.value = to_boolean(where, flag.path, *flag.value), .where = flag.path};
  }
  return config;
}

RopeConfig HfConfig::rope() const {
  RopeConfig rope;
  rope.theta = number_or("rope_theta", rope.theta);
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const Json* fields = member(*json_, key);
    if (fields == nullptr) {
      continue;
    }
    if (!fields->is_object()) {
      throw_value(where_, key, "an object", *fields);
    }
    const auto path = [key](std::string_view field) { return concat(key, ".", field); };
    const auto number = [&](std::string_view field, double& out) {
      if (const Json* value = member(*fields, field)) {
        out = to_number(where_, path(field), *value);
      }
    };
    for (const auto& [name, value] : fields->items()) {
      if (value.is_object()) {
        throw_value(where_, path(name), "one set of rotary parameters for all layers", value);
      }
    }
    for (const std::string_view field : {"type", "rope_type"}) { // the second, newer spelling wins
      if (const Json* value = member(*fields, field)) {
        rope.type = to_text(where_, path(field), *value);
      }
    }
    number("rope_theta", rope.theta);
    number("factor", rope.factor);
    number("low_freq_factor", rope.low_freq_factor);
    number("high_freq_factor", rope.high_freq_factor);
    if (const Json* value = member(*fields, "original_max_position_embeddings")) {
      rope.original_max_position_embeddings = to_integer(where_, path("original_max_position_embeddings"), *value);
    }
    break;
  }
  return rope;
}

std::int64_t HfConfig::integer(std::string_view key) const {
  if (const std::optional<std::int64_t> value = optional_integer(key)) {
    return *value;
  }
  throw InputError({.code = Code::kConfigMissingKey,
                    .what = "config.json lacks a field that the family needs",
                    .where = concat(where_, ", ", key),
                    .why = "expected an integer, got no such field",
                    .fix = concat("add ", key, " to config.json, or restore the file of the original model")});
}

std::int64_t HfConfig::integer_or(std::string_view key, std::int64_t fallback) const {
  return optional_integer(key).value_or(fallback);
}

std::optional<std::int64_t> HfConfig::optional_integer(std::string_view key) const {
  const Json* value = member(*json_, key);
  return value == nullptr ? std::nullopt : std::optional(to_integer(where_, key, *value));
}

double HfConfig::number_or(std::string_view key, double fallback) const {
  const Json* value = member(*json_, key);
  return value == nullptr ? fallback : to_number(where_, key, *value);
}

bool HfConfig::boolean_or(std::string_view key, bool fallback) const {
  const Json* value = member(*json_, key);
  return value == nullptr ? fallback : to_boolean(where_, key, *value);
}

std::string HfConfig::string_or(std::string_view key, std::string_view fallback) const {
  const Json* value = member(*json_, key);
  return value == nullptr ? std::string(fallback) : to_text(where_, key, *value);
}

bool HfConfig::has(std::string_view key) const {
  return member(*json_, key) != nullptr;
}

} // namespace tieshard
