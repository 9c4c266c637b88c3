// tieshard/core/checkpoint/safetensors_file.h
//
// One safetensors file on disk: its header is read and checked at once, its data is not touched.
//
// Flow: checkpoint_index -> [this] -> plan/read_plan.h, io/reader.h

#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_header.h"

namespace tieshard {

/// What a reader accepts. The format caps headers at 100 MB; a flag can raise it.
struct SafetensorsLimits {
  std::uint64_t max_header_bytes = 100'000'000;
};

class SafetensorsFile {
 public:
  /// @throws InputError file-not-found, file-empty, not-safetensors (the file is a zip, a pickle, a Git LFS pointer, an
  ///         HTML page, ...: `why` says which), big-endian, header-too-large, header-longer-than-file, and everything
  ///         that parse_safetensors_header throws
  static SafetensorsFile open(const std::filesystem::path& path, const SafetensorsLimits& limits = {});

  /// The entry of `tensor`, or null. O(log n).
  const TensorEntry* find(std::string_view tensor) const;

  const SafetensorsHeader& header() const noexcept {
    return header_;
  }
  const File& file() const noexcept {
    return file_;
  }
  std::uint64_t size() const noexcept {
    return size_;
  }

 private:
  SafetensorsFile(File file, SafetensorsHeader header, std::uint64_t size);

  File file_;
  SafetensorsHeader header_;
  std::uint64_t size_ = 0;
  std::vector<std::size_t> by_name_; ///< indices into header_.tensors, sorted by name
};

} // namespace tieshard
