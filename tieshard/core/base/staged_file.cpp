#include "tieshard/core/base/staged_file.h"

#include <atomic>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard {

StagedFile StagedFile::create(const std::filesystem::path& path, std::uint64_t bytes) {
  static std::atomic<std::uint64_t> counter = 0;
  std::filesystem::path staged = path;
  staged += concat(".", ::getpid(), "-", counter++, ".tmp");
  return {File::create(staged, bytes), path};
}

StagedFile::StagedFile(StagedFile&& other) noexcept
    : file_(std::move(other.file_)), path_(std::move(other.path_)), staged_(std::exchange(other.staged_, false)) {}

StagedFile::~StagedFile() {
  if (staged_) {
    std::error_code ignored; // nothing can be done about it here, and another error is under way
    std::filesystem::remove(file_.path(), ignored);
  }
}

void StagedFile::publish() {
  file_.sync();
  std::error_code error;
  std::filesystem::rename(file_.path(), path_, error);
  if (error) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "a finished file could not be given its name",
                     .where = path_.string(),
                     .why = concat("expected to rename ", file_.path().string(), ", got: ", error.message()),
                     .fix = "check that no directory has that name and that the directory may be written"});
  }
  staged_ = false;
  sync_directory(path_.parent_path());
}

} // namespace tieshard
