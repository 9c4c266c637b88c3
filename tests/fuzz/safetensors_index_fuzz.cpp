// tests/fuzz/safetensors_index_fuzz.cpp
//
// parse_safetensors_index on arbitrary text: what it accepts names plain files of one directory, at least one.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/safetensors_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const tieshard::SafetensorsIndex index = tieshard::parse_safetensors_index(text, "index.json");
    if (index.files().empty()) {
      std::abort();
    }
    for (const std::string& file : index.files()) {
      if (file.empty() || file == "." || file == ".." || file.find('/') != file.npos || file.find('\0') != file.npos) {
        std::abort();
      }
    }
  } catch (const tieshard::InputError& error) {
    const tieshard::Code code = error.diagnostic().code;
    if (code != tieshard::Code::kIndexMalformed && code != tieshard::Code::kPathEscape) {
      std::abort(); // the document promises these two
    }
  }
  return 0;
}
