#include "tieshard/core/state/staged_output.h"

#include <system_error>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/state/checkpoint_store.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

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

DirectoryLock lock_of(const fs::path& directory) {
  require_absent(directory);
  return DirectoryLock::take_beside(directory);
}

} // namespace

StagedOutput::StagedOutput(const fs::path& directory, std::uint64_t bytes)
    : directory_(directory), staging_(staging_of(directory)), lock_(lock_of(directory)) {
  require_absent(directory_); // the job that held the lock may have made it
  remove_left(staging_);
  try {
    std::error_code error;
    fs::create_directory(staging_, error);
    if (error) {
      throw PeerError({.code = Code::kIoFailed,
                       .what = "the staging directory could not be made",
                       .where = staging_.string(),
                       .why = concat("expected to make it, got: ", error.message()),
                       .fix = "check the permissions of the directory that it is in, and its disk's free space"});
    }
    require_free_space(staging_, bytes);
  } catch (...) {
    std::error_code ignored; // another error is under way
    fs::remove_all(staging_, ignored);
    throw;
  }
}

StagedOutput::~StagedOutput() {
  if (!published_) {
    std::error_code ignored; // nothing can be done about it here, and another error is under way
    fs::remove_all(staging_, ignored);
  }
}

void StagedOutput::publish() {
  require_absent(directory_);
  published_ = true; // from here on a failure leaves it: it is complete
  publish_directory(directory_);
}

} // namespace tieshard
