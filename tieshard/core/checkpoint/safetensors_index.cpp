#include "tieshard/core/checkpoint/safetensors_index.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json.h"
#include "tieshard/core/base/json_reader.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

[[noreturn]] void fail(const std::string& where, std::string why) {
  throw InputError({.code = Code::kIndexMalformed,
                    .what = "model.safetensors.index.json is not as it has to be",
                    .where = where,
                    .why = std::move(why),
                    .fix = "save the model again, or download the index again"});
}

/// Separators of every platform are refused: an index that only works on one is no better than one that escapes.
bool is_plain_file_name(std::string_view file) {
  return !file.empty() && file != "." && file != ".." && file.find_first_of(std::string_view("/\\\0", 3)) == file.npos;
}

void read_weight_map(JsonReader& json, const std::string& where, SafetensorsIndex& index) {
  if (json.kind() != JsonReader::Kind::kObject) {
    fail(where, concat("expected weight_map to be an object of tensor to file, got ", format_name(json.skip())));
  }
  json.enter_object();
  while (const auto next = json.next_key()) {
    std::string tensor(*next);
    if (json.kind() != JsonReader::Kind::kString) {
      fail(concat(where, ", weight_map, ", format_name(tensor)),
           concat("expected a file name as a string, got ", format_name(json.skip())));
    }
    const std::string_view file = json.string();
    if (!is_plain_file_name(file)) {
      throw InputError(
          {.code = Code::kPathEscape,
           .what = "the index names a file outside its directory",
           .where = concat(where, ", weight_map, ", format_name(tensor)),
           .why = concat("expected the name of a file in the same directory, got \"", format_name(file), "\""),
           .fix = "do not load this checkpoint unless you trust it; put all shards beside the index and name "
                  "them without a directory"});
    }
    index.weight_map.emplace_hint(index.weight_map.end(), std::move(tensor), file); // mostly sorted by their writer
  }
  if (index.weight_map.empty()) {
    fail(where, "expected weight_map to be an object of tensor to file, got an empty weight_map");
  }
}

/// As digits, however it is written (1e9, 5.0), so that it can be compared; another value as it is.
std::string total_as_text(std::string_view value) {
  double number = 0.0;
  const bool is_number = std::from_chars(value.data(), value.data() + value.size(), number).ec == std::errc();
  if (json_unsigned(value) || !is_number || number < 0 || number >= 0x1p53 || std::trunc(number) != number) {
    return format_name(value);
  }
  return std::to_string(static_cast<std::uint64_t>(number));
}

void read_metadata(JsonReader& json, SafetensorsIndex& index) {
  if (json.kind() != JsonReader::Kind::kObject) {
    json.skip();
    return;
  }
  json.enter_object();
  while (const auto key = json.next_key()) {
    const bool is_total = *key == "total_size";
    const std::string_view value = json.skip();
    if (is_total && value != "null") {
      index.total_size = total_as_text(value);
    }
  }
}

} // namespace

std::vector<std::string> SafetensorsIndex::files() const {
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map) {
    files.insert(file);
  }
  return {files.begin(), files.end()};
}

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& where) {
  SafetensorsIndex index;
  try {
    JsonReader json(text, where);
    if (json.kind() != JsonReader::Kind::kObject) {
      fail(where, concat("expected an object with a weight_map, got ", format_name(json.skip())));
    }
    json.enter_object();
    while (const auto key = json.next_key()) {
      if (*key == "weight_map") {
        read_weight_map(json, where, index);
      } else if (*key == "metadata") {
        read_metadata(json, index);
      } else {
        json.skip();
      }
    }
    json.finish();
  } catch (const InputError& error) {
    const Code code = error.diagnostic().code;
    if (code == Code::kIndexMalformed || code == Code::kPathEscape) {
      throw;
    }
    Diagnostic diagnostic = error.diagnostic();
    diagnostic.code = Code::kIndexMalformed;
    diagnostic.why = concat(diagnostic.why, " [", id(code), "]");
    throw InputError(diagnostic);
  }
  if (index.weight_map.empty()) {
    fail(where, "expected weight_map to be an object of tensor to file, got no weight_map");
  }
  return index;
}

std::string safetensors_index_text(const std::map<std::string, std::string>& weight_map, std::uint64_t total_size) {
  return Json{{"metadata", {{"total_size", total_size}}}, {"weight_map", weight_map}}.dump(2) + "\n";
}

std::string weights_file_name(std::size_t index, std::size_t count) {
  if (count == 1) {
    return "model.safetensors";
  }
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

} // namespace tieshard
