// tieshard/core/checkpoint/safetensors_index.h
//
// model.safetensors.index.json: which shard holds which tensor.
//
// Flow:   checkpoint -> [this]
// Source: transformers save_pretrained: {"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

struct SafetensorsIndex {
  std::map<std::string, std::string, std::less<>> weight_map; ///< tensor -> file name, without a directory
  std::optional<std::string> total_size;                      ///< metadata.total_size as JSON text, null as absent

  /// The files that weight_map names: each once, sorted.
  std::vector<std::string> files() const;
};

/// @param where  the index file, for errors
/// @throws InputError index-malformed (not JSON, no weight_map, an empty one, a value that is no string), path-escape
///         (a value is not the plain name of a file in the same directory)
SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& where);

/// The text of an index file. @param total_size  bytes of all tensors
std::string safetensors_index_text(const std::map<std::string, std::string>& weight_map, std::uint64_t total_size);

/// What save_pretrained calls file `index` (from 0) of `count`: "model.safetensors",
/// "model-00001-of-00003.safetensors".
std::string weights_file_name(std::size_t index, std::size_t count);

} // namespace tieshard
