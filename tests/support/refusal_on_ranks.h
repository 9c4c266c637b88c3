// tests/support/refusal_on_ranks.h
//
// What one rank refuses, and the others follow.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tieshard/runtime/mesh/device_mesh.h"

#include "tests/support/diagnostics.h"

namespace tieshard::testing {

/// `rank` throws an Error of `code` with all `parts`; the others throw peer-failed, and name it. A collective.
inline void expect_refusal_of_rank(const DeviceMesh& mesh,
                                   std::int64_t rank,
                                   const std::function<void()>& action,
                                   Code code,
                                   const std::vector<std::string>& parts) {
  if (mesh.rank() == rank) {
    expect_refusal(action, code, parts);
  } else {
    expect_refusal(action, Code::kPeerFailed, {std::string("rank ") + std::to_string(rank) + " says"});
  }
}

} // namespace tieshard::testing
