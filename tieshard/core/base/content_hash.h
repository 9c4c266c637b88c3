// tieshard/core/base/content_hash.h
//
// The hash of a file's bytes, taken while they pass by.
//
// Flow:   core/state -> [this] -> xxhash.h
// Source: XXH3, 128 bits, as `xxh128sum` prints it. It finds damage, not forgery.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tieshard {

class ContentHash {
 public:
  ContentHash();
  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;
  ~ContentHash();

  void update(std::span<const std::byte> bytes);

  /// Of everything so far: 32 hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace tieshard
