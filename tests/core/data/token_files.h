// tests/core/data/token_files.h
//
// Token files of each format, laid out here byte by byte.

#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/core/base/temp_dir.h"

namespace tieshard::testing {

template <typename Number>
void append(std::string& out, Number number) {
  char bytes[sizeof(number)];
  std::memcpy(bytes, &number, sizeof(number));
  out.append(bytes, sizeof(number));
}

template <typename Number>
std::string as(const std::vector<std::int64_t>& numbers) {
  std::string bytes;
  for (const std::int64_t number : numbers) {
    append(bytes, static_cast<Number>(number));
  }
  return bytes;
}

inline std::filesystem::path write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

inline std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t tokens) {
  std::string bytes = as<std::int32_t>({magic, version, tokens});
  bytes.resize(1024);
  return bytes;
}

/// What a Megatron index says.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t code = 8; ///< uint16
  std::vector<std::int64_t> lengths{};
  std::vector<std::int64_t> pointers{};
  std::vector<std::int64_t> documents{};

  std::string bytes() const {
    std::string out = magic;
    append(out, version);
    append(out, code);
    append<std::uint64_t>(out, lengths.size());
    append<std::uint64_t>(out, documents.size());
    return out + as<std::int32_t>(lengths) + as<std::int64_t>(pointers) + as<std::int64_t>(documents);
  }
};

/// Three documents, of 3, 2 + 1 and 4 tokens of uint16.
inline Index three_documents() {
  return {.lengths = {3, 2, 1, 4}, .pointers = {0, 6, 10, 12}, .documents = {0, 1, 3, 4}};
}

} // namespace tieshard::testing
