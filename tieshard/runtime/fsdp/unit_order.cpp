#include "tieshard/runtime/fsdp/unit_order.h"

#include <algorithm>
#include <utility>

namespace tieshard {

void UnitOrder::begin_forward() {
  expected_ = std::exchange(entered_, {});
  left_.clear();
}

std::vector<FsdpParamGroup*> UnitOrder::enter(FsdpParamGroup& group, std::int64_t count) {
  const std::size_t place = entered_.size();
  entered_.push_back(&group);
  if (place >= expected_.size() || expected_[place] != &group) {
    return {};
  }
  const auto begin = expected_.begin() + static_cast<std::ptrdiff_t>(place) + 1;
  return {begin, begin + std::min<std::ptrdiff_t>(count, expected_.end() - begin)};
}

void UnitOrder::leave(FsdpParamGroup& group) {
  left_.push_back(&group);
}

std::vector<FsdpParamGroup*> UnitOrder::backward_after(const FsdpParamGroup& group, std::int64_t count) const {
  const auto begin = std::ranges::find(left_.rbegin(), left_.rend(), &group);
  if (begin == left_.rend()) {
    return {};
  }
  return {begin + 1, begin + 1 + std::min<std::ptrdiff_t>(count, left_.rend() - begin - 1)};
}

} // namespace tieshard
