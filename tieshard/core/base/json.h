// tieshard/core/base/json.h
//
// Strict JSON: what the standard allows and nothing else, with duplicate keys refused.
//
// Flow:   checkpoint (headers, index, config) -> [this] -> nlohmann::json
// Source: RFC 8259; safetensors forbids duplicate keys, which nlohmann::json drops silently.

#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace tieshard {

using Json = nlohmann::json;

/// Parses one JSON document: UTF-8, no byte order mark, no comments, no NaN, no trailing text, nesting of at
/// most 128 levels, each key once per object. Trailing white space is allowed.
///
/// @param text   the document
/// @param where  what to name in an error, usually the file
/// @throws InputError json-malformed (with line and column), json-duplicate-key (with the key), json-not-utf8,
///         json-too-deep
Json parse_json(std::string_view text, const std::string& where);

} // namespace tieshard
