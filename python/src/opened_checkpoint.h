// python/src/opened_checkpoint.h
//
// A checkpoint as tieshard.open() gives it: tensors under the names that are stored, and, when it is asked for, the
// model that they are of.
//
// Flow: core/checkpoint, core/ties/resolved_model.h -> [this] -> checkpoint.cpp, ties.cpp, plan.cpp

#pragma once

#include <filesystem>
#include <memory>
#include <mutex>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/ties/resolved_model.h"

namespace tieshard::python {

class OpenedCheckpoint {
 public:
  /// @throws InputError whatever Checkpoint::open throws
  explicit OpenedCheckpoint(const std::filesystem::path& directory);

  const Checkpoint& stored() const noexcept {
    return checkpoint_;
  }

  /// With the model's names; made at the first call. May be called from several threads.
  /// @throws InputError whatever resolve_model throws
  const ResolvedModel& resolved() const;

 private:
  Checkpoint checkpoint_;
  std::filesystem::path directory_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<ResolvedModel> resolved_;
};

} // namespace tieshard::python
