#include "python/src/opened_checkpoint.h"

namespace tieshard::python {

OpenedCheckpoint::OpenedCheckpoint(const std::filesystem::path& directory)
    : checkpoint_(Checkpoint::open(directory)), directory_(directory) {}

const ResolvedModel& OpenedCheckpoint::resolved() const {
  const std::lock_guard lock(mutex_);
  if (resolved_ == nullptr) {
    resolved_ = std::make_unique<ResolvedModel>(resolve_model(directory_));
  }
  return *resolved_;
}

} // namespace tieshard::python
