#include "tieshard/core/state/staged_output.h"

#include <system_error>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/state/checkpoint_store.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".lock";

void require_absent(const fs::path& directory) {
  std::error_code ignored; // what cannot be asked about cannot be renamed to either, which says so
  if (fs::exists(fs::symlink_status(directory, ignored))) {
    throw InputError({.code = Code::kOutputExists,
                      .what = "the output directory holds something already",
                      .where = directory.string(),
                      .why = "expected no such name yet, got one",
                      .fix = "choose another directory or remove this one; nothing is written over"});
  }
}

void remove_left(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "what a killed job left could not be removed",
                     .where = path.string(),
                     .why = concat("expected to remove it, got: ", error.message()),
                     .fix = "remove it by hand, or check the permissions of its directory"});
  }
}

} // namespace

StagedOutput::StagedOutput(const fs::path& directory, std::uint64_t bytes)
    : directory_(directory), staging_(staging_of(directory)) {
  require_absent(directory_);
  lock_ = DirectoryLock::take(staging_);
  try {
    for (const std::string& name : list_directory(staging_)) {
      if (name != kLock) {
        remove_left(staging_ / name);
      }
    }
    require_free_space(staging_, bytes);
  } catch (...) {
    std::error_code ignored; // another error is under way
    fs::remove_all(staging_, ignored);
    throw;
  }
}

StagedOutput::~StagedOutput() {
  if (lock_) {
    std::error_code ignored; // nothing can be done about it here, and another error is under way
    fs::remove_all(staging_, ignored);
  }
}

void StagedOutput::publish() {
  require_absent(directory_);
  remove_left(staging_ / kLock);
  lock_.reset(); // from here on a failure leaves it: it is complete
  publish_directory(directory_);
}

} // namespace tieshard
