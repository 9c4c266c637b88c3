#include "tieshard/core/base/content_hash.h"

#include <array>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tieshard {

struct ContentHash::State {
  XXH3_state_t value;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->value);
}
ContentHash::ContentHash(ContentHash&&) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&&) noexcept = default;
ContentHash::~ContentHash() = default;

void ContentHash::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->value, bytes.data(), bytes.size());
}

std::string ContentHash::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(&state_->value);
  std::array<char, 33> text{};
  std::snprintf(text.data(),
                text.size(),
                "%016llx%016llx",
                static_cast<unsigned long long>(digest.high64),
                static_cast<unsigned long long>(digest.low64));
  return text.data();
}

} // namespace tieshard
