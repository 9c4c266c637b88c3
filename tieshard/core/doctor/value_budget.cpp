#include "tieshard/core/doctor/value_budget.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace tieshard {

std::vector<std::uint64_t> bytes_to_read(const std::vector<BudgetedTensor>& tensors, std::uint64_t budget) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return tensors[a].first != tensors[b].first ? tensors[a].first : tensors[a].bytes < tensors[b].bytes;
  });
  std::vector<std::uint64_t> result(tensors.size(), 0);
  std::uint64_t left = budget;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const BudgetedTensor& tensor = tensors[order[i]];
    const std::uint64_t share = tensor.first ? left : left / (order.size() - i);
    const std::uint64_t bytes = tensor.bytes <= share ? tensor.bytes : share / tensor.element * tensor.element;
    result[order[i]] = bytes;
    left -= bytes;
  }
  return result;
}

} // namespace tieshard
