// tieshard/core/failures/log_ends.h
//
// Lines that say how a process or a wait ended where no exception does: the kernel's, Slurm's, a launcher's, NCCL's.
//
// Flow:   log_facts, failures_of_runs -> [this]
// Source: torch's ProcessGroupNCCL watchdog and elastic launcher, the Linux kernel's oom-killer, slurmstepd, bash.

#pragma once

#include <string_view>

namespace tieshard {

enum class LogEnd {
  kNone,
  kKilled,   ///< a process was ended with SIGKILL, mostly for memory
  kTimedOut, ///< a collective waited too long
};

LogEnd end_of(std::string_view text);

} // namespace tieshard
