// tieshard/core/io/not_finite.h
//
// What a load says of NaN and infinity: one warning for all parameters that hold any.
//
// Flow: reader -> [this] -> local_shards, runtime/load (the same for all ranks)

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/shape.h"

namespace tieshard {

/// A parameter with a value that is not finite.
struct NotFinite {
  std::string fqn;
  Shape index; ///< of the first such element that was seen, in the whole parameter
  bool nan = false;
};

/// The warning not-finite for `found`, which is not empty: the first places are named, then their number.
Diagnostic not_finite_finding(const std::vector<NotFinite>& found);

} // namespace tieshard
