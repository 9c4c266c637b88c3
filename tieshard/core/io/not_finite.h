// tieshard/core/io/not_finite.h
//
// What is said of NaN and infinity: one warning for all parameters that hold any.
//
// Flow: reader, core/doctor -> [this] -> local_shards, runtime/load (the same for all ranks)

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/shape.h"

namespace tieshard {

/// A parameter with a value that is not finite.
struct NotFinite {
  std::string fqn;
  Shape index; ///< of the first such element that was seen, in the whole parameter
  bool nan = false;
  std::string place{}; ///< file and name in it, for `where`; empty: the fqn says enough
};

/// The element of `shape` that is not finite: its value, in `dtype`, lies at `element`, its place in row-major order is
/// `at`.
NotFinite not_finite_at(
    const std::string& fqn, const std::byte* element, DType dtype, std::uint64_t at, const Shape& shape);

/// The warning not-finite for `found`, which is not empty: the first places are named, then their number.
Diagnostic not_finite_finding(const std::vector<NotFinite>& found);

} // namespace tieshard
