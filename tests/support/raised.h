// tests/support/raised.h
//
// Catches what a call throws, so that a test can look at the whole Diagnostic.

#pragma once

#include <optional>

#include "tieshard/core/base/error.h"

namespace tieshard::testing {

/// The Diagnostic of the Kind that `call` throws; nothing when it throws none. Another exception passes through.
template <typename Kind = Error, typename Call>
std::optional<Diagnostic> raised(Call&& call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.diagnostic();
  }
  return std::nullopt;
}

} // namespace tieshard::testing
