// tests/support/collective_log.h
//
// Notes every collective of this process while it lives.

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/collectives.h"

namespace tieshard::testing {

class CollectiveLog {
 public:
  CollectiveLog() {
    observe_collectives([this](const CollectiveCall& call) { calls_.push_back(call); });
  }
  ~CollectiveLog() {
    observe_collectives(nullptr);
  }
  CollectiveLog(const CollectiveLog&) = delete;
  CollectiveLog& operator=(const CollectiveLog&) = delete;

  /// What was noted since the last call, as "all_gather 168", in bytes.
  std::vector<std::string> take() {
    std::vector<std::string> lines;
    for (const CollectiveCall& call : std::exchange(calls_, {})) {
      lines.push_back(concat(call.operation, " ", call.bytes));
    }
    return lines;
  }

  /// The same with the axis, as "dp_shard all_gather 168".
  std::vector<std::string> take_with_axis() {
    std::vector<std::string> lines;
    for (const CollectiveCall& call : std::exchange(calls_, {})) {
      lines.push_back(concat(call.axis, " ", call.operation, " ", call.bytes));
    }
    return lines;
  }

 private:
  std::vector<CollectiveCall> calls_;
};

} // namespace tieshard::testing
