// tieshard/runtime/mesh/collective_purpose.h
//
// What a collective is for: in messages, and compared between ranks that share memory.
//
// Flow: callers of collectives -> [this] -> collectives, core/shm

#pragma once

#include <string>
#include <utility>

#include "tieshard/core/base/error.h"

namespace tieshard {

/// A unit's tensors, or a stage of a run. Ranks that are at different ones are not paired, whatever their sizes.
class CollectivePurpose {
 public:
  /// Nothing in particular.
  CollectivePurpose() = default;

  /// The tensors of a unit; the root's name is empty. Implicit, so that a unit's name can be given as it is.
  CollectivePurpose(const std::string& unit) : text_(unit.empty() ? "the root unit" : concat("unit ", unit)) {}
  CollectivePurpose(const char* unit) : CollectivePurpose(std::string(unit)) {}

  /// Any other, as messages are to call it: "agree \"data\"".
  static CollectivePurpose named(std::string text) {
    CollectivePurpose purpose;
    purpose.text_ = std::move(text);
    return purpose;
  }

  /// "unit layers.3", "the root unit", or empty for nothing in particular.
  const std::string& text() const noexcept {
    return text_;
  }

 private:
  std::string text_;
};

} // namespace tieshard
