#include "tieshard/runtime/optim/slot_report.h"

#include "tieshard/core/base/error.h"

namespace tieshard {

std::string_view id(SlotKind kind) {
  switch (kind) {
    case SlotKind::kManaged:
      return "managed";
    case SlotKind::kFrozen:
      return "frozen";
    case SlotKind::kAlias:
      return "alias";
    case SlotKind::kDuplicate:
      return "duplicate";
    case SlotKind::kStale:
      return "stale";
    case SlotKind::kUnmanaged:
      return "unmanaged";
    case SlotKind::kForeign:
      return "foreign";
    case SlotKind::kForeignState:
      return "foreign-state";
    case SlotKind::kForeignGradient:
      return "foreign-gradient";
    case SlotKind::kLeftOut:
      return "left-out";
  }
  return "unknown";
}

std::string_view remedy(SlotKind kind) {
  switch (kind) {
    case SlotKind::kManaged:
      return "managed and trainable, as it should be";
    case SlotKind::kFrozen:
      return "frozen: requires_grad is false; set_requires_grad(true), or take it and its state out with "
             "OptimizerGuard::drop_frozen(optimizer) (drop_frozen() of a guarded one)";
    case SlotKind::kAlias:
      return "an alias of a tied parameter that is listed already, and would be stepped twice (LibTorch's parameters() "
             "lists a tied tensor once per name); use unique_parameters() or OptimizerGuard::build";
    case SlotKind::kDuplicate:
      return "listed before, and would be stepped twice; list each parameter in one group only";
    case SlotKind::kStale:
      return "stale: after fully_shard the module got another tensor under this name, or lost it; change modules "
             "before fully_shard, and shard the module as it is now before its optimizer is built";
    case SlotKind::kUnmanaged:
      return "not managed: no fully_shard unit owns it (a partial wrap left it out, or it was registered after); "
             "register it before fully_shard, inside a unit, or freeze it with set_requires_grad(false)";
    case SlotKind::kForeign:
      return "foreign: not a parameter of the sharded module; register it in the module before fully_shard; where the "
             "module's tensors were others when the optimizer was built, give adopt() or switch_to_sharded() those";
    case SlotKind::kForeignState:
      return "the optimizer keeps state of it from before fully_shard that cannot go on with the parameter; build the "
             "optimizer before its first step, or after fully_shard";
    case SlotKind::kForeignGradient:
      return "its gradient is not shaped as the shard, and not reduced over the ranks: it comes from a backward "
             "outside state->run(), or was put there by hand; zero_grad(), and run the forward through the state";
    case SlotKind::kLeftOut:
      return "managed and trainable, but in no group: it would never be trained; add it, or freeze it with "
             "set_requires_grad(false)";
  }
  return "";
}

std::string SlotReport::reason() const {
  const std::string place = held == nullptr ? "no group" : concat("group ", group, ", slot ", slot);
  return concat(name, " (", place, "): ", remedy(kind), detail.empty() ? "" : "; ", detail);
}

std::string to_text(const std::vector<SlotReport>& slots) {
  std::string text;
  for (const SlotReport& slot : slots) {
    const std::string identity = slot.current == nullptr     ? "no object of the module"
                                 : slot.current == slot.held ? "the same object"
                                                             : "another object";
    const std::string shapes =
        slot.whole.empty() ? to_string(slot.local) : concat(to_string(slot.whole), " -> ", to_string(slot.local));
    text += concat("group ",
                   slot.group,
                   " slot ",
                   slot.slot,
                   "  ",
                   slot.name,
                   "  ",
                   id(slot.kind),
                   "  ",
                   identity,
                   "  ",
                   shapes,
                   "\n");
  }
  return text;
}

} // namespace tieshard
