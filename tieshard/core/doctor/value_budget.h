// tieshard/core/doctor/value_budget.h
//
// How much of each tensor is looked at when there is not time for all: small ones whole, and a part of every other.
//
// Flow: value_check -> [this]

#pragma once

#include <cstdint>
#include <vector>

namespace tieshard {

/// A tensor that could be read.
struct BudgetedTensor {
  std::uint64_t bytes = 0;
  std::uint64_t element = 1; ///< bytes of one element: what is read is a multiple of it
  bool first = false;        ///< before all that are not
};

/// For each tensor the number of its first bytes to read, together at most `budget`. Those with `first` are given all
/// that they have, as long as there is budget; what is left is divided among the others, so that none is passed over
/// for the sake of a larger one, and what a small one does not need goes to the rest.
std::vector<std::uint64_t> bytes_to_read(const std::vector<BudgetedTensor>& tensors, std::uint64_t budget);

} // namespace tieshard
