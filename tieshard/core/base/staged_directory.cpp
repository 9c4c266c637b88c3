#include "tieshard/core/base/staged_directory.h"

#include <system_error>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

fs::path without_slash(const fs::path& directory) {
  return directory.has_filename() ? directory : directory.parent_path();
}

} // namespace

fs::path staging_of(const fs::path& directory) {
  const fs::path plain = without_slash(directory);
  return plain.parent_path() / ("." + plain.filename().string() + ".staging");
}

fs::path stage_directory(const fs::path& directory) {
  std::error_code error;
  if (fs::exists(directory, error)) {
    throw InputError({.code = Code::kOutputExists,
                      .what = "the output directory holds something already",
                      .where = directory.string(),
                      .why = "expected no such name yet",
                      .fix = "choose another directory or remove this one; an export never mixes with an older one"});
  }
  const fs::path staging = staging_of(directory);
  fs::remove_all(staging, error);
  fs::create_directories(staging, error);
  if (error) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "the staging directory could not be made",
                     .where = staging.string(),
                     .why = error.message(),
                     .fix = "check permissions and free space there"});
  }
  return staging;
}

void publish_directory(const fs::path& directory) {
  const fs::path staging = staging_of(directory);
  const fs::path plain = without_slash(directory);
  sync_directory(staging);
  std::error_code error;
  fs::rename(staging, plain, error);
  if (error) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "the finished export could not be renamed",
                     .where = concat(staging.string(), " -> ", plain.string()),
                     .why = error.message(),
                     .fix = "rename it by hand: it is complete"});
  }
  sync_directory(plain.parent_path().empty() ? fs::path(".") : plain.parent_path());
}

void copy_durably(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, error);
  if (error) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "a file beside the weights could not be copied",
                     .where = concat(from.string(), " -> ", to.string()),
                     .why = error.message(),
                     .fix = "check permissions and free space; nothing was published"});
  }
  File::open_for_writing(to).sync();
}

} // namespace tieshard
