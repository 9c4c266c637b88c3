#include "tieshard/core/generate/end_tokens.h"

#include <filesystem>
#include <string>
#include <system_error>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/json.h"

namespace tieshard {
namespace {

constexpr const char* kKey = "eos_token_id";

std::vector<std::int64_t> tokens_of(const Json& document, const std::string& where) {
  if (!document.is_object() || !document.contains(kKey) || document.at(kKey).is_null()) {
    return {};
  }
  const Json& value = document.at(kKey);
  std::vector<std::int64_t> tokens;
  for (const Json& token : value.is_array() ? value : Json::array({value})) {
    if (!token.is_number_unsigned()) {
      throw InputError({.code = Code::kConfigValue,
                        .what = "a field of a configuration has a value that cannot be used",
                        .where = concat(where, ", ", kKey),
                        .why = concat("expected a token or a list of them, got ", value.dump()),
                        .fix = "write the id of the token that ends a text, or leave the field out"});
    }
    tokens.push_back(token.get<std::int64_t>());
  }
  return tokens;
}

} // namespace

std::vector<std::int64_t> end_tokens(const Checkpoint& checkpoint) {
  const std::filesystem::path generation = checkpoint.directory() / "generation_config.json";
  std::vector<std::int64_t> tokens;
  std::error_code error;
  if (std::filesystem::exists(generation, error)) {
    tokens = tokens_of(parse_json(read_text_file(generation), generation.string()), generation.string());
  }
  return tokens.empty() ? tokens_of(checkpoint.config().json(), checkpoint.config().where()) : tokens;
}

} // namespace tieshard
