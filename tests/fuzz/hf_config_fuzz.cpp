// tests/fuzz/hf_config_fuzz.cpp
//
// HfConfig on arbitrary text: every field is given in its range or refused.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/hf_config.h"

namespace {

template <typename Call>
void or_refuse(Call&& call) {
  try {
    call();
  } catch (const tieshard::InputError&) { // a refusal
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  or_refuse([text] {
    const tieshard::HfConfig config = tieshard::HfConfig::parse(text, "config.json");
    or_refuse([&] { config.rope(); });
    for (const char* key : {"hidden_size", "vocab_size", "tie_word_embeddings", "hidden_act"}) {
      or_refuse([&] {
        const std::int64_t value = config.integer(key);
        if (value < 0 || value > std::int64_t{1} << 40) {
          std::abort();
        }
      });
      or_refuse([&] { config.number_or(key, 0); });
      or_refuse([&] { config.boolean_or(key, false); });
      or_refuse([&] { config.string_or(key, ""); });
    }
  });
  return 0;
}
