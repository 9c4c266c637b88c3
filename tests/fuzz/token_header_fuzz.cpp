// tests/fuzz/token_header_fuzz.cpp
//
// The headers of token files on arbitrary bytes: what is accepted lies within the file, and documents rise.
// Input: 2 little-endian bytes that say how many bytes the .bin has, then a Megatron index or the head of an llm.c
// file.

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tieshard/core/base/error.h"
#include "tieshard/core/data/megatron_index.h"

namespace {

void parse_index(std::span<const std::byte> bytes, std::uint64_t data_bytes) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    if (offset > bytes.size() || out.size() > bytes.size() - offset) {
      std::abort();
    }
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  const tieshard::MegatronIndex index = tieshard::parse_megatron_index(read, bytes.size(), data_bytes, true, "input");
  if (static_cast<std::uint64_t>(index.layout.tokens * tieshard::width(index.layout.type)) != data_bytes ||
      index.documents != static_cast<std::int64_t>(index.document_starts.size())) {
    std::abort();
  }
  std::int64_t before = -1;
  for (const std::int64_t start : index.document_starts) {
    if (start <= before || start >= index.layout.tokens) {
      std::abort();
    }
    before = start;
  }
}

void parse_head(std::span<const std::byte> bytes) {
  const auto layout = tieshard::parse_llmc_header(bytes, bytes.size(), "input");
  if (layout &&
      layout->begin + static_cast<std::uint64_t>(layout->tokens * tieshard::width(layout->type)) != bytes.size()) {
    std::abort();
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data + 2, size - 2));
  const std::uint64_t data_bytes = data[0] | data[1] << 8U;
  for (const bool index : {true, false}) {
    try {
      index ? parse_index(bytes, data_bytes) : parse_head(bytes);
    } catch (const tieshard::InputError&) { // a refusal
    }
  }
  return 0;
}
