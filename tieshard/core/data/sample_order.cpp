#include "tieshard/core/data/sample_order.h"

#include <numeric>
#include <random>
#include <utility>

namespace tieshard {
namespace {

/// seed_seq takes 32 bits of each number: a larger seed's upper half is a number of its own.
std::mt19937_64 generator_of(std::uint64_t seed, std::uint64_t epoch) {
  const std::uint64_t upper = seed >> 32;
  std::seed_seq small{seed, epoch};
  std::seed_seq large{seed, epoch, upper};
  return std::mt19937_64(upper == 0 ? small : large);
}

} // namespace

std::int64_t SampleOrder::at(std::int64_t position) {
  const std::int64_t epoch = position / samples_;
  if (!shuffle_) {
    return position % samples_;
  }
  if (epoch != epoch_) {
    order_.resize(static_cast<std::size_t>(samples_));
    std::iota(order_.begin(), order_.end(), 0);
    std::mt19937_64 generator = generator_of(seed_, static_cast<std::uint64_t>(epoch));
    for (std::size_t last = order_.size(); last > 1; --last) { // not std::shuffle: its order is not specified
      std::swap(order_[last - 1], order_[generator() % last]);
    }
    epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(position % samples_)];
}

} // namespace tieshard
