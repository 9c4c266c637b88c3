// tieshard/runtime/fsdp/unit_order.h
//
// In which order units run, to know which come next: forward as in the last forward, backward the other way round.
//
// Flow:   fsdp_state -> [this]
// Source: FSDP2's post_forward_order, and its explicit forward prefetching.

#pragma once

#include <cstdint>
#include <vector>

#include "tieshard/runtime/fsdp/fsdp_param_group.h"

namespace tieshard {

class UnitOrder {
 public:
  /// The root's forward begins: what was noted before is the order that is expected now.
  void begin_forward();

  /// Notes that `group` begins its forward. @returns the next `count` units of the last forward, none when this one
  /// takes another order
  std::vector<FsdpParamGroup*> enter(FsdpParamGroup& group, std::int64_t count);

  /// Notes that `group` ended a forward that has a backward.
  void leave(FsdpParamGroup& group);

  /// The `count` units whose backward comes after that of `group`, if they ended their forwards once each in order.
  std::vector<FsdpParamGroup*> backward_after(const FsdpParamGroup& group, std::int64_t count) const;

 private:
  std::vector<FsdpParamGroup*> expected_;
  std::vector<FsdpParamGroup*> entered_;
  std::vector<FsdpParamGroup*> left_;
};

} // namespace tieshard
