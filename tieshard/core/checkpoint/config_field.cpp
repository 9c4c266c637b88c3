#include "tieshard/core/checkpoint/config_field.h"

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::int64_t kMaxInteger = std::int64_t{1} << 40;

} // namespace

const Json* config_member(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

void refuse_config_value(const std::string& where, std::string_view path, const char* expected, const Json& got) {
  throw InputError(
      {.code = Code::kConfigValue,
       .what = "a field of config.json has a value that cannot be used",
       .where = concat(where, ", ", format_name(path)),
       .why = concat(
           "expected ", expected, ", got ", format_name(got.dump(-1, ' ', false, Json::error_handler_t::replace))),
       .fix = concat("correct ", format_name(path), ", or restore the config.json of the original model")});
}

void refuse_missing_field(const std::string& where, std::string_view path, const char* expected) {
  throw InputError({.code = Code::kConfigMissingKey,
                    .what = "config.json lacks a field that the family needs",
                    .where = concat(where, ", ", path),
                    .why = concat("expected ", expected, ", got no such field"),
                    .fix = concat("add ", path, " to config.json, or restore the file of the original model")});
}

std::int64_t config_integer(const std::string& where, std::string_view path, const Json& value) {
  // A number above 2^63 is held unsigned, and reads as negative.
  if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    if (number >= 0 && number <= kMaxInteger) {
      return number;
    }
  }
  refuse_config_value(where, path, "an integer from 0 to 2^40", value);
}

double config_number(const std::string& where, std::string_view path, const Json& value) {
  if (!value.is_number()) {
    refuse_config_value(where, path, "a number", value);
  }
  return value.get<double>();
}

bool config_boolean(const std::string& where, std::string_view path, const Json& value) {
  if (!value.is_boolean()) {
    refuse_config_value(where, path, "true or false", value);
  }
  return value.get<bool>();
}

std::string config_text(const std::string& where, std::string_view path, const Json& value) {
  if (!value.is_string()) {
    refuse_config_value(where, path, "a string", value);
  }
  return value.get<std::string>();
}

} // namespace tieshard
