// tests/support/allocation_peak.h
//
// What LibTorch's own CPU allocator has given out on this thread while it lives: bytes now, and at most.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace tieshard::testing {

class AllocationPeak {
 public:
  AllocationPeak() : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

  /// Bytes above those at the beginning; below 0 when more was given back.
  std::int64_t now() const {
    return counter_->now;
  }
  std::int64_t most() const {
    return counter_->most;
  }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now += bytes;
      most = std::max(most, now);
    }
    bool memoryProfilingEnabled() const override {
      return true;
    }
    std::int64_t now = 0;
    std::int64_t most = 0;
  };

  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

} // namespace tieshard::testing
