// tieshard/runtime/mesh/c10d_log.h
//
// c10d says what goes wrong in stack traces on standard error, before it throws. Our own message is to be all that a
// user reads.
//
// Flow: process_group -> [this] -> c10's log

#pragma once

namespace tieshard {

/// While it lives, c10 logs nothing, unless TORCH_CPP_LOG_LEVEL is set: who sets that wants to read it. What is thrown
/// is not touched. A question that the store left unanswered keeps the log quiet for good, since its thread goes on.
class QuietC10d {
 public:
  QuietC10d();
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;
  ~QuietC10d();

 private:
  int level_;
};

} // namespace tieshard
