#include "tieshard/core/state/directory_lock.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestText = 512;

[[noreturn]] void throw_failed(const fs::path& path, const std::string& doing, int error) {
  throw PeerError({.code = Code::kIoFailed,
                   .what = "a directory could not be locked",
                   .where = path.string(),
                   .why = concat("expected to ", doing, ", got: ", std::strerror(error)),
                   .fix = "check the permissions of the directory, and that its file system knows flock"});
}

std::string this_process() {
  std::array<char, 256> host{};
  const bool known = ::gethostname(host.data(), host.size() - 1) == 0;
  return concat("process ", ::getpid(), " of host ", known ? host.data() : "unknown", "\n");
}

/// The first line of what the lock's holder wrote; it may not have come to that yet.
std::string holder(int descriptor) {
  std::string text(kLongestText, '\0');
  const ssize_t count = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  text = text.substr(0, text.find('\n'));
  return text.empty() ? "a process that did not say its name" : format_name(text);
}

void make_directories(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    throw_failed(directory, "make the directory", error.value());
  }
}

int open_lock_file(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    throw_failed(path, "open or make the file", errno);
  }
  return descriptor;
}

/// @param path  of the lock's file, which `descriptor` is
void lock_file(int descriptor, const fs::path& path, const fs::path& directory) {
  int result = 0;
  do {
    result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    throw InputError({.code = Code::kDirectoryInUse,
                      .what = "another job writes into this directory",
                      .where = directory.string(),
                      .why = concat("expected nobody to hold ", path.string(), ", got ", holder(descriptor)),
                      .fix = "wait for that job or end it, or choose another directory"});
  }
  if (result != 0) {
    throw_failed(path, "lock the file", errno);
  }
  const std::string text = this_process();
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, text.data(), text.size(), 0) < 0) {
    throw_failed(path, "write this process's name into the file", errno);
  }
}

/// Whether `path` still is the file that was opened: its holder may have removed it just before it was locked here.
bool is_same_file(int descriptor, const fs::path& path) {
  struct stat opened{};
  struct stat named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

} // namespace

DirectoryLock DirectoryLock::take(const fs::path& directory) {
  make_directories(directory);
  const fs::path path = directory / ".lock";
  DirectoryLock lock(open_lock_file(path)); // closes it
  lock_file(lock.descriptor_, path, directory);
  return lock;
}

DirectoryLock DirectoryLock::take_beside(const fs::path& directory) {
  const fs::path plain = directory.has_filename() ? directory : directory.parent_path();
  if (plain.has_parent_path()) {
    make_directories(plain.parent_path());
  }
  const fs::path path = plain.parent_path() / concat(".", plain.filename().string(), ".lock");
  for (;;) {
    DirectoryLock lock(open_lock_file(path));
    lock_file(lock.descriptor_, path, directory);
    if (is_same_file(lock.descriptor_, path)) {
      lock.removed_ = path;
      return lock;
    }
  }
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), removed_(std::exchange(other.removed_, {})) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(removed_, other.removed_);
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ >= 0) {
    if (!removed_.empty()) {
      ::unlink(removed_.c_str()); // while it is held, so that nobody else's is removed
    }
    ::close(descriptor_);
  }
}

} // namespace tieshard
