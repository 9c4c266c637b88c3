// tieshard/core/checkpoint/foreign_format.h
//
// What a file is when it is not safetensors, told by its first bytes, so that a refusal can say what to do.
//
// Flow:   safetensors_file -> [this]
// Source: the magic numbers of each format; the Git LFS pointer specification.

#pragma once

#include <optional>
#include <string_view>

namespace tieshard {

struct ForeignFormat {
  std::string_view name; ///< "a zip archive (a PyTorch checkpoint)", to follow "got"
  std::string_view fix;  ///< what to do about it, imperative
};

/// How many of a file's first bytes recognise_foreign_format() looks at.
inline constexpr std::size_t kForeignFormatBytes = 512;

/// @param first_bytes  the beginning of a file, up to kForeignFormatBytes
std::optional<ForeignFormat> recognise_foreign_format(std::string_view first_bytes);

} // namespace tieshard
