// tests/faults/fault_plan.h
//
// Which of a job's file operations goes wrong, and how. Read from the environment, once a process:
//
//   TIESHARD_FAULT          enospc, eio, einval: the operation fails with that errno; kill: SIGKILL to the process in
//                           its middle; kill-all: to its process group; count: nothing, operations are counted only
//   TIESHARD_FAULT_UNDER    only operations on files under this directory count
//   TIESHARD_FAULT_CALLS    which operations count, e.g. "write,rename"; absent: all of write, allocate, sync, rename,
//                           exchange (of two names), make (a file or directory) and remove
//   TIESHARD_FAULT_AT       the number of the first operation that goes wrong, from 1
//   TIESHARD_FAULT_FOR      how many in a row; 0: all from there on. Absent: 1
//   TIESHARD_FAULT_COUNTER  a file of 8 zero bytes: the number of operations so far, of all processes together

#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tieshard::faults {

enum class Call { kWrite, kAllocate, kSync, kRename, kExchange, kMake, kRemove };

/// What an operation has to do.
enum class Outcome {
  kPass,
  kFail, ///< with FaultPlan::error
  kDie,  ///< do half of it, then FaultPlan::die()
};

class FaultPlan {
 public:
  /// Of this process. Ends it with status 99 when the environment says something that it does not know: a fault that is
  /// not injected would be a test that cannot fail.
  static const FaultPlan& get();

  /// Counts an operation on `path`, if it is one that counts.
  Outcome next(Call call, std::string_view path) const;
  /// The same for an open file.
  Outcome next(Call call, int descriptor) const;

  /// Sends SIGKILL to this process, or to its group.
  [[noreturn]] void die() const;

  int error() const {
    return error_;
  }

 private:
  FaultPlan();

  bool active_ = false;
  int error_ = 0; ///< 0: kill
  bool whole_group_ = false;
  bool count_only_ = false;
  std::string under_;
  std::string calls_; ///< empty: all
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
  std::atomic<std::uint64_t>* counter_ = nullptr; ///< in memory that all processes of the job share
};

} // namespace tieshard::faults
