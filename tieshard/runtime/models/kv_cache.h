// tieshard/runtime/models/kv_cache.h
//
// The keys and values of the tokens that a decoder has seen, so that the next token costs one row and not all of them.
//
// Flow: runtime/generate -> [this] <- decoder, gpt2
//
// Shape suffixes: B batch, K key/value heads, S tokens so far, D head_dim.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tieshard {

/// Of one batch of sequences of equal length. A forward appends to every layer and then advances once.
class KvCache {
 public:
  /// @param layers    LanguageModel::cached_layers()
  /// @param capacity  tokens that it can hold at most; memory is taken when a layer is first used
  KvCache(std::int64_t layers, std::int64_t capacity);

  /// Tokens that every layer holds: the position of the next one.
  std::int64_t length() const noexcept {
    return length_;
  }
  std::int64_t capacity() const noexcept {
    return capacity_;
  }

  /// Puts keys and values [B, K, T, D] behind those of `layer`. @returns all of them, [B, K, length() + T, D], views
  /// @throws UsageError wrong-state past the capacity, and for a layer that it was not made for
  std::pair<at::Tensor, at::Tensor> append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values);

  /// `tokens` were appended to every layer.
  void advance(std::int64_t tokens) {
    length_ += tokens;
  }

 private:
  struct Layer {
    at::Tensor keys, values; ///< [B, K, capacity, D]
  };

  std::vector<Layer> layers_;
  std::int64_t capacity_;
  std::int64_t length_ = 0;
};

} // namespace tieshard
