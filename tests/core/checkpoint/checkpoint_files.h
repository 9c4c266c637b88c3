// tests/core/checkpoint/checkpoint_files.h
//
// The bytes of safetensors files and indices, right or wrong, put together without the code under test.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tieshard {

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kFirstShard = "model-00001-of-00002.safetensors";
inline constexpr const char* kSecondShard = "model-00002-of-00002.safetensors";

/// The 8 little-endian bytes of a header length.
inline std::string length_prefix(std::uint64_t length) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) {
    bytes += static_cast<char>(length >> shift & 0xFFU);
  }
  return bytes;
}

/// A whole file: length, header, data.
inline std::string packed(const std::string& header, const std::string& data) {
  return length_prefix(header.size()) + header + data;
}

/// A header entry, from JSON texts: entry("w", "F32", "[2]", "[0,8]").
inline std::string entry(const std::string& name,
                         const std::string& dtype,
                         const std::string& shape,
                         const std::string& range) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + range + "}";
}

/// A valid file of U8 tensors, each given by its name and its bytes.
inline std::string u8_file(const std::vector<std::pair<std::string, std::string>>& tensors) {
  std::string members;
  std::string data;
  for (const auto& [name, bytes] : tensors) {
    const std::string end = std::to_string(data.size() + bytes.size());
    members += (members.empty() ? "" : ",") + entry(name,
                                                    "U8",
                                                    "[" + std::to_string(bytes.size()) + "]",
                                                    "[" + std::to_string(data.size()) + "," + end + "]");
    data += bytes;
  }
  return packed("{" + members + "}", data);
}

/// An index; `metadata` is JSON text.
inline std::string index_text(const std::vector<std::pair<std::string, std::string>>& weight_map,
                              const std::string& metadata = "{}") {
  std::string members;
  for (const auto& [tensor, file] : weight_map) {
    members += (members.empty() ? "\"" : ",\"") + tensor + R"(":")" + file + "\"";
  }
  return R"({"metadata":)" + metadata + R"(,"weight_map":{)" + members + "}}";
}

} // namespace tieshard
