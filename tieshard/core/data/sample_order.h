// tieshard/core/data/sample_order.h
//
// In which order samples are trained on: the same on every rank.
//
// Flow: token_samples, runtime/train/token_data -> [this]

#pragma once

#include <cstdint>
#include <vector>

namespace tieshard {

/// Shuffled, each epoch is a permutation that depends on seed and epoch only.
class SampleOrder {
 public:
  /// Pre: samples above 0
  SampleOrder(std::int64_t samples, bool shuffle, std::uint64_t seed)
      : samples_(samples), shuffle_(shuffle), seed_(seed) {}

  /// The sample at this place of the run, from 0; past the last one the next epoch begins.
  std::int64_t at(std::int64_t position);

 private:
  std::int64_t samples_;
  bool shuffle_;
  std::uint64_t seed_;
  std::int64_t epoch_ = -1; ///< whose order `order_` is
  std::vector<std::int64_t> order_;
};

} // namespace tieshard
