// tests/fuzz/sharding_info_fuzz.cpp
//
// parse_sharding_info on arbitrary text: what it accepts are offsets that no sum of two can make wrap.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/sharding_info.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto check = [](const tieshard::Shape& numbers) {
    const bool right =
        std::ranges::all_of(numbers, [](std::int64_t n) { return n >= 0 && n <= std::int64_t{1} << 53; });
    if (!right || numbers.size() > 64) {
      std::abort();
    }
  };
  try {
    for (const auto& [name, place] : tieshard::parse_sharding_info(text, "file")) {
      check(place.offsets);
      if (place.whole) {
        check(*place.whole);
      }
    }
  } catch (const tieshard::InputError& error) {
    if (error.diagnostic().code != tieshard::Code::kBadEntry) {
      std::abort(); // the document promises this one
    }
  }
  return 0;
}
