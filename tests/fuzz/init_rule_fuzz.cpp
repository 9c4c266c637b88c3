// tests/fuzz/init_rule_fuzz.cpp
//
// InitRule::parse on arbitrary text: a rule whose text is a rule again, or a refusal.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tieshard/core/base/error.h"
#include "tieshard/core/plan/init_rule.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (tieshard::InitRule::parse(text).to_string().empty()) {
      std::abort();
    }
  } catch (const tieshard::InputError&) { // a refusal
  }
  return 0;
}
