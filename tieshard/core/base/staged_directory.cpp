#include "tieshard/core/base/staged_directory.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include <fcntl.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

fs::path without_slash(const fs::path& directory) {
  return directory.has_filename() ? directory : directory.parent_path();
}

fs::path hidden(const fs::path& directory, const char* ending) {
  const fs::path plain = without_slash(directory);
  return plain.parent_path() / concat(".", plain.filename().string(), ending);
}

fs::path parent_of(const fs::path& directory) {
  const fs::path parent = without_slash(directory).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

[[noreturn]] void throw_failed(const fs::path& path, const std::string& doing, const std::error_code& error) {
  const bool full = error == std::errc::no_space_on_device;
  throw PeerError({.code = full ? Code::kDiskFull : Code::kIoFailed,
                   .what = "a directory could not be renamed or removed",
                   .where = path.string(),
                   .why = concat("expected to ", doing, ", got: ", error.message()),
                   .fix = "check the permissions of the directory above it and the free space of its disk"});
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw_failed(from, concat("rename it to ", to.string()), error);
  }
}

void remove_or_throw(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw_failed(path, "remove it", error);
  }
}

/// The directory's entries, and those of directories in it.
void sync_tree(const fs::path& directory) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(directory, error); !error && entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    if (entry->is_directory()) {
      sync_directory(entry->path());
    }
  }
  sync_directory(directory);
}

/// False where the file system or the kernel cannot.
bool exchange(const fs::path& one, const fs::path& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    throw_failed(one, concat("exchange it with ", other.string()), std::error_code(errno, std::generic_category()));
  }
  return false;
}

} // namespace

void require_new_name(const fs::path& directory) {
  const std::string name = without_slash(directory).filename().string();
  if (name.empty() || name == "." || name == "..") {
    throw InputError(
        {.code = Code::kBadFlag,
         .what = "an output directory has no name",
         .where = "OUT",
         .why = concat("expected the name of a directory that is not there yet, got \"", directory.string(), "\""),
         .fix = "name a new directory; an empty variable in a script gives an empty name"});
  }
}

fs::path staging_of(const fs::path& directory) {
  return hidden(directory, ".staging");
}

fs::path stage_directory(const fs::path& directory, Existing existing) {
  std::error_code error;
  if (existing == Existing::kRefuse && fs::exists(directory, error)) {
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
  sync_tree(staging);
  std::error_code error;
  fs::rename(staging, plain, error);
  if (error) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "the finished export could not be renamed",
                     .where = concat(staging.string(), " -> ", plain.string()),
                     .why = error.message(),
                     .fix = "rename it by hand: it is complete"});
  }
  sync_directory(parent_of(directory));
}

void replace_directory(const fs::path& directory) {
  const fs::path plain = without_slash(directory);
  if (std::error_code error; !fs::exists(plain, error)) {
    publish_directory(directory);
    return;
  }
  const fs::path staging = staging_of(directory);
  sync_tree(staging);
  if (exchange(staging, plain)) {
    sync_directory(parent_of(directory));
    remove_or_throw(staging);
    return;
  }
  remove_or_throw(removal_of(directory));
  rename_or_throw(plain, removal_of(directory));
  rename_or_throw(staging, plain);
  sync_directory(parent_of(directory));
  remove_or_throw(removal_of(directory));
}

fs::path removal_of(const fs::path& directory) {
  return hidden(directory, ".removed");
}

void remove_directory(const fs::path& directory) {
  remove_or_throw(removal_of(directory));
  rename_or_throw(without_slash(directory), removal_of(directory));
  remove_or_throw(removal_of(directory));
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
