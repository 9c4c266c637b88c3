// tests/fuzz/json_fuzz.cpp
//
// parse_json on arbitrary bytes: gives the document that nlohmann::json gives, and refuses what that refuses; beyond it
// only what it says it refuses.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const tieshard::Json document = tieshard::parse_json(text, "input");
    if (document != nlohmann::json::parse(text)) {
      std::abort();
    }
  } catch (const tieshard::InputError& error) {
    const bool stricter = error.diagnostic().code != tieshard::Code::kJsonMalformed ||
                          text.starts_with("\xEF\xBB\xBF") || text.find('\0') != std::string_view::npos;
    if (!stricter && nlohmann::json::accept(text)) {
      std::abort();
    }
    if (error.diagnostic().to_string().size() > 2000) {
      std::abort(); // a message that hostile text can blow up
    }
  }
  return 0;
}
