#include "tieshard/core/base/json.h"

#include <charconv>
#include <cstdint>
#include <locale>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/json_reader.h"

namespace tieshard {
namespace {

/// An integer where it fits in 64 bits, else the nearest double.
Json number_of(std::string_view text) {
  if (const auto number = json_unsigned(text)) {
    return *number;
  }
  const char* const end = text.data() + text.size();
  std::int64_t negative = 0;
  if (const auto [stop, error] = std::from_chars(text.data(), end, negative); stop == end && error == std::errc()) {
    return negative;
  }
  double real = 0.0;
  if (std::from_chars(text.data(), end, real).ec != std::errc()) { // too small for from_chars
    std::istringstream stream{std::string(text)};
    stream.imbue(std::locale::classic());
    stream >> real;
  }
  return real;
}

Json build(JsonReader& reader) {
  switch (reader.kind()) {
    case JsonReader::Kind::kNull:
      reader.skip();
      return nullptr;
    case JsonReader::Kind::kBoolean:
      return reader.skip() == "true";
    case JsonReader::Kind::kNumber:
      return number_of(reader.skip());
    case JsonReader::Kind::kString:
      return std::string(reader.string());
    case JsonReader::Kind::kArray: {
      Json array = Json::array();
      reader.enter_array();
      while (reader.next_element()) {
        array.push_back(build(reader));
      }
      return array;
    }
    case JsonReader::Kind::kObject: {
      Json object = Json::object();
      reader.enter_object();
      while (const auto key = reader.next_key()) {
        object.emplace(std::string(*key), build(reader));
      }
      return object;
    }
  }
  return nullptr;
}

} // namespace

Json parse_json(std::string_view text, const std::string& where) {
  JsonReader reader(text, where);
  Json document = build(reader);
  reader.finish();
  return document;
}

} // namespace tieshard
