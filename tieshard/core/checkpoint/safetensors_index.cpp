#include "tieshard/core/checkpoint/safetensors_index.h"

#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json.h"
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

Json parse_document(std::string_view text, const std::string& where) {
  try {
    return parse_json(text, where);
  } catch (const InputError& error) {
    Diagnostic diagnostic = error.diagnostic();
    diagnostic.code = Code::kIndexMalformed;
    diagnostic.why = concat(diagnostic.why, " [", id(error.diagnostic().code), "]");
    throw InputError(diagnostic);
  }
}

/// Separators of every platform are refused: an index that only works on one is no better than one that escapes.
bool is_plain_file_name(const std::string& file) {
  return !file.empty() && file != "." && file != ".." && file.find_first_of(std::string_view("/\\\0", 3)) == file.npos;
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
  const Json document = parse_document(text, where);
  const auto weight_map = document.find("weight_map");
  if (weight_map == document.end() || !weight_map->is_object() || weight_map->empty()) {
    fail(where,
         concat("expected weight_map to be an object of tensor to file, got ",
                !document.is_object()          ? document.type_name()
                : weight_map == document.end() ? "no weight_map"
                : weight_map->is_object()      ? "an empty weight_map"
                                               : weight_map->type_name()));
  }
  SafetensorsIndex index;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string()) {
      fail(concat(where, ", weight_map, ", format_name(tensor)),
           concat("expected a file name as a string, got ", format_name(file.dump())));
    }
    const auto& name = file.get_ref<const std::string&>();
    if (!is_plain_file_name(name)) {
      throw InputError(
          {.code = Code::kPathEscape,
           .what = "the index names a file outside its directory",
           .where = concat(where, ", weight_map, ", format_name(tensor)),
           .why = concat("expected the name of a file in the same directory, got \"", format_name(name), "\""),
           .fix = "do not load this checkpoint unless you trust it; put all shards beside the index and name "
                  "them without a directory"});
    }
    index.weight_map.emplace(tensor, name);
  }
  const auto metadata = document.find("metadata");
  if (metadata != document.end() && metadata->is_object()) {
    const auto total_size = metadata->find("total_size");
    if (total_size != metadata->end() && !total_size->is_null()) {
      index.total_size = format_name(total_size->dump());
    }
  }
  return index;
}

} // namespace tieshard
