// tieshard/core/checkpoint/config_field.h
//
// One field of a config.json: found, and read as the type that it has to have.
//
// Flow: hf_config.cpp, rope_config.cpp -> [this] -> json.h

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tieshard/core/base/json.h"

namespace tieshard {

/// A field and how errors name it; `value` is null when it is not there.
struct FoundField {
  const Json* value = nullptr;
  std::string path;
};

/// The member `key` of an object, or null when it is absent, null, or `object` is no object.
const Json* config_member(const Json& object, std::string_view key);

/// @throws InputError config-value, always. @param where  the file; @param path  the field
[[noreturn]] void refuse_config_value(const std::string& where,
                                      std::string_view path,
                                      const char* expected,
                                      const Json& got);

/// @throws InputError config-missing-key, always
[[noreturn]] void refuse_missing_field(const std::string& where, std::string_view path, const char* expected);

/// The value as its type. @throws InputError config-value when it is of another one; an integer also when it is
/// negative or above 2^40
std::int64_t config_integer(const std::string& where, std::string_view path, const Json& value);
double config_number(const std::string& where, std::string_view path, const Json& value);
bool config_boolean(const std::string& where, std::string_view path, const Json& value);
std::string config_text(const std::string& where, std::string_view path, const Json& value);

} // namespace tieshard
