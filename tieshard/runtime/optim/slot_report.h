// tieshard/runtime/optim/slot_report.h
//
// What one entry of an optimizer's parameter groups is, in the eyes of the guard.
//
// Flow:   optimizer_guard, switch_to_sharded -> [this] -> whoever asks why an optimizer was refused
// Source: accelerate #3821, whose message names neither the parameter nor the reason.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/TensorImpl.h>

#include "tieshard/core/base/shape.h"

namespace tieshard {

/// What a parameter in an optimizer is.
enum class SlotKind {
  kManaged,         ///< owned by fully_shard, trainable, once
  kFrozen,          ///< managed, but requires no gradient
  kAlias,           ///< a further name of a tied parameter that is listed already: it would be stepped twice
  kDuplicate,       ///< listed before, though it has one name only
  kStale,           ///< managed, but since then the module got another tensor under that name, or lost it
  kUnmanaged,       ///< the module's, but outside all units: left out by a partial wrap, or added after fully_shard
  kForeign,         ///< not of this module
  kForeignState,    ///< managed, but the optimizer keeps state of it that cannot be cut as the parameter was
  kForeignGradient, ///< its gradient is not shaped as the shard: no state reduced it
  kLeftOut,         ///< managed and trainable, but in no group
};

std::string_view id(SlotKind kind);

/// What is wrong with a kind of slot, and what to do about it.
std::string_view remedy(SlotKind kind);

/// One entry of an optimizer's parameter groups.
struct SlotReport {
  std::string name{}; ///< fqn, an alias's own; "(unknown), shape [..]" for a foreign tensor
  std::size_t group = 0;
  std::size_t slot = 0;
  SlotKind kind = SlotKind::kManaged;
  const c10::TensorImpl* held = nullptr;    ///< the optimizer's tensor; null for a parameter that is in no group
  const c10::TensorImpl* current = nullptr; ///< the module's tensor of that name now; null for a foreign one
  Shape whole{};                            ///< before sharding; empty for what is not managed
  Shape local{};                            ///< as the optimizer holds it now
  std::string detail{};                     ///< what is known beyond the kind

  /// "lm_head.weight (group 0, slot 3): an alias: ..." with the reason and the remedy.
  std::string reason() const;
};

/// A line for each slot: group, slot, name, kind, identity and shapes before and after.
std::string to_text(const std::vector<SlotReport>& slots);

} // namespace tieshard
