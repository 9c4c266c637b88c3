// tieshard/core/checkpoint/safetensors_writer.h
//
// Lays a safetensors file out before a byte of it is written, so that several ranks can write disjoint ranges of it.
//
// Flow:   runtime/state/hf_export -> [this] -> io/slice_writer.h
// Source: the safetensors format text; like its library: falling order of DType, then name; header padded to 8.

#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tieshard/core/checkpoint/safetensors_header.h"

namespace tieshard {

/// Name, dtype and shape of a tensor that is to be written.
struct TensorSpec {
  std::string name;
  DType dtype;
  Shape shape;
};

/// A file that has been decided but not written. Equal input gives equal bytes on every rank.
struct SafetensorsLayout {
  std::string prefix;       ///< the 8-byte length and the padded header: the first bytes of the file
  SafetensorsHeader header; ///< with `begin` and `end` of each tensor and `data_start`
  std::uint64_t file_bytes = 0;
  std::map<std::string, std::uint64_t> offsets; ///< first byte in the file of each tensor

  /// Byte of the file at which `tensor` begins. @throws InternalError bug when it is not in the layout
  std::uint64_t offset_of(const std::string& tensor) const;
};

/// @param metadata  strings for __metadata__ ({"format": "pt"} is what transformers expects)
/// @throws UsageError duplicate-tensor-name when a name occurs twice, bad-entry when a tensor is called __metadata__,
///         json-not-utf8, size-mismatch when packed elements do not fill whole bytes, bad-shape, size-overflow
SafetensorsLayout layout_safetensors(std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata);

/// Writes a whole file from memory, complete or absent (temporary name, fsync, rename).
///
/// @param data  called once for each tensor, in file order; gives its bytes in row-major order
/// @throws PeerError disk-full, io-failed; UsageError size-mismatch when `data` gives the wrong number of bytes
void write_safetensors(const std::filesystem::path& path,
                       const SafetensorsLayout& layout,
                       const std::function<std::span<const std::byte>(const TensorEntry&)>& data);

} // namespace tieshard
