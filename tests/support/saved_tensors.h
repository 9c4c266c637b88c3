// tests/support/saved_tensors.h
//
// The tensors of a training checkpoint on disk, whole, read without the code that saves and loads them.

#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tieshard/core/state/box_reader.h"
#include "tieshard/core/state/sharded_files.h"

namespace tieshard::testing {

/// Bytes by name, with dtype and shape in front of them.
inline std::map<std::string, std::string> saved_tensors(const std::filesystem::path& directory) {
  const ShardedFiles files = ShardedFiles::open(directory);
  BoxReader reader(files);
  std::map<std::string, std::string> tensors;
  for (const ShardedTensor& tensor : files.tensors()) {
    std::string bytes(checked_bytes(tensor.shape, tensor.dtype).value(), '\0');
    reader.read(tensor,
                {.offsets = Shape(tensor.shape.size(), 0), .shape = tensor.shape},
                reinterpret_cast<std::byte*>(bytes.data()));
    tensors[tensor.name] = std::string(name(tensor.dtype)) + to_string(tensor.shape) + bytes;
  }
  return tensors;
}

} // namespace tieshard::testing
