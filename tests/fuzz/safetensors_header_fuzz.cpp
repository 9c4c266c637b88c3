// tests/fuzz/safetensors_header_fuzz.cpp
//
// parse_safetensors_header on arbitrary text: what it accepts covers every byte of the data exactly once.
// Input: 4 little-endian bytes that say how many bytes of data follow the header, then the header.

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) {
    return 0;
  }
  const std::uint64_t data_bytes = data[0] | data[1] << 8U | data[2] << 16U | std::uint64_t{data[3]} << 24U;
  const std::string_view text(reinterpret_cast<const char*>(data + 4), size - 4);
  try {
    const tieshard::SafetensorsHeader header = tieshard::parse_safetensors_header(text, data_bytes, "input");
    std::uint64_t covered = 0;
    std::set<std::string_view> names;
    for (const tieshard::TensorEntry& entry : header.tensors) {
      if (entry.begin != covered || tieshard::checked_bytes(entry.shape, entry.dtype) != entry.end - entry.begin ||
          !names.insert(entry.name).second) {
        std::abort();
      }
      covered = entry.end;
    }
    if (covered != data_bytes || header.data_start != 8 + text.size()) {
      std::abort();
    }
  } catch (const tieshard::InputError&) { // a refusal
  }
  return 0;
}
