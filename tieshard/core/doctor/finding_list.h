// tieshard/core/doctor/finding_list.h
//
// Collects what the rooms above throw and report, so that one fault does not hide the next.
//
// Flow: the checks -> [this] -> doctor.h

#pragma once

#include <functional>
#include <vector>

#include "tieshard/core/base/error.h"

namespace tieshard {

/// Findings in the order in which they were met; each once, however many checks meet it.
class FindingList {
 public:
  void add(const Diagnostic& finding);
  void add(const std::vector<Diagnostic>& findings);

  /// Runs `check`; what it refuses becomes a finding of level error. @return false when it refused
  /// @throws PeerError, InternalError and foreign exceptions of `check`: they say nothing about the checkpoint
  bool collect(const std::function<void()>& check);

  /// Errors first, then warnings, then notes; of one level in the order found.
  std::vector<Diagnostic> sorted() const;

 private:
  std::vector<Diagnostic> findings_;
};

} // namespace tieshard
