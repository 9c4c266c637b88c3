#include "tieshard/core/base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/staged_file.h"

namespace tieshard {
namespace {

constexpr const char* kRegularFile = "a readable regular file";

[[noreturn]] void throw_peer(const std::filesystem::path& path, int error, const std::string& doing) {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw PeerError({.code = full ? Code::kDiskFull : Code::kIoFailed,
                   .what = full ? "there is no room on the disk" : "the kernel refused a file operation",
                   .where = path.string(),
                   .why = concat("expected to ", doing, ", got: ", std::strerror(error)),
                   .fix = full ? "free space or a quota on that disk, or write to another one"
                               : "check the disk and the permissions of the directory, then try again"});
}

[[noreturn]] void throw_unreadable(const std::filesystem::path& path, const char* expected, const std::string& got) {
  throw InputError({.code = Code::kFileUnreadable,
                    .what = "a file is there but cannot be opened",
                    .where = path.string(),
                    .why = concat("expected ", expected, ", got ", got),
                    .fix = "name another path, or correct the permissions"});
}

int open_retrying(const std::filesystem::path& path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

struct stat status_of(int descriptor, const std::filesystem::path& path) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    throw_peer(path, errno, "ask for the size of the file");
  }
  return status;
}

FileIdentity identity_of(const struct stat& status) {
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return {.size = static_cast<std::uint64_t>(status.st_size),
          .modified_ns = status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec,
          .inode = static_cast<std::uint64_t>(status.st_ino),
          .device = static_cast<std::uint64_t>(status.st_dev)};
}

std::string to_text(const FileIdentity& identity) {
  return concat(identity.size,
                " bytes, modified at ",
                identity.modified_ns,
                " ns, inode ",
                identity.inode,
                " of device ",
                identity.device);
}

[[noreturn]] void throw_changed(const std::filesystem::path& path, const FileIdentity& opened, const std::string& got) {
  throw PeerError({.code = Code::kFileChanged,
                   .what = "a weights file changed while it was in use",
                   .where = path.string(),
                   .why = concat("expected ", to_text(opened), " as when it was opened, got ", got),
                   .fix = "load again, and keep files as they are while they are in use: write new ones beside them "
                          "and rename"});
}

/// True when all these bytes are in memory; false also where the kernel (before 6.5) cannot say. A hundred times
/// cheaper than advice that is not needed.
bool in_page_cache(int descriptor, std::uint64_t offset, std::uint64_t bytes) {
  constexpr long kCachestat = 451; // the same number on all architectures; the headers may be older than the kernel
  struct {
    std::uint64_t offset, bytes;
  } const range{offset, bytes};
  struct {
    std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } pages{};
  if (bytes == 0 || ::syscall(kCachestat, descriptor, &range, &pages, 0) != 0) {
    return bytes == 0;
  }
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return pages.cached >= (offset + bytes - 1) / page - offset / page + 1;
}

/// Takes disk for the file now. Where a file system cannot, the size alone is set and a full disk shows when writing.
void reserve(int descriptor, const std::filesystem::path& path, std::uint64_t bytes) {
  if (bytes == 0) {
    return;
  }
  const auto size = static_cast<off_t>(bytes);
  int result = 0;
  do {
    result = ::fallocate(descriptor, 0, 0, size);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EOPNOTSUPP) {
    result = ::ftruncate(descriptor, size);
  }
  if (result != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    throw_peer(path, error, concat("reserve ", bytes, " bytes"));
  }
}

} // namespace

File File::open_for_reading(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it changes nothing for a regular file.
  const int descriptor = open_retrying(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR)) {
    throw InputError({.code = Code::kFileNotFound,
                      .what = "a file that is needed is not there",
                      .where = path.string(),
                      .why = concat("expected a file, got: ", std::strerror(errno)),
                      .fix = "check the path; if it is a symbolic link, check what it points at"});
  }
  if (descriptor < 0) {
    throw_unreadable(path, kRegularFile, std::strerror(errno));
  }
  File file(descriptor, path);
  const struct stat status = status_of(descriptor, path);
  if (!S_ISREG(status.st_mode)) {
    throw_unreadable(path, kRegularFile, S_ISDIR(status.st_mode) ? "a directory" : "a device, pipe or socket");
  }
  file.identity_ = identity_of(status);
  return file;
}

File File::create(const std::filesystem::path& path, std::uint64_t bytes) {
  if (!std::in_range<off_t>(bytes)) {
    throw_peer(path, EFBIG, concat("create a file of ", bytes, " bytes"));
  }
  const int descriptor = open_retrying(path, O_RDWR | O_CREAT | O_TRUNC);
  if (descriptor < 0) {
    throw_peer(path, errno, "create the file");
  }
  File file(descriptor, path);
  reserve(descriptor, path, bytes);
  return file;
}

File File::open_for_writing(const std::filesystem::path& path) {
  const int descriptor = open_retrying(path, O_WRONLY);
  if (descriptor < 0) {
    throw_peer(path, errno, "open the file for writing");
  }
  return File(descriptor, path);
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)), identity_(other.identity_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(identity_, other.identity_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  const std::uint64_t first = offset;
  while (!out.empty()) {
    const ssize_t count =
        std::in_range<off_t>(offset) ? ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset)) : 0;
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw_peer(path_, errno, concat("read at byte ", offset));
    }
    if (count == 0) {
      throw PeerError({.code = Code::kIoFailed,
                       .what = "a file ended while it was read",
                       .where = concat(path_.string(), ", bytes ", first, " to ", offset + out.size()),
                       .why = concat("expected ", out.size(), " more bytes, got the end of the file at byte ", offset),
                       .fix = "check whether another process writes or cuts the file"});
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void File::read_ahead(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  if (!std::in_range<off_t>(offset) || !std::in_range<off_t>(bytes) || in_page_cache(descriptor_, offset, bytes)) {
    return;
  }
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

void File::write_at(std::uint64_t offset, std::span<const std::byte> data) const {
  while (!data.empty()) {
    if (!std::in_range<off_t>(offset)) {
      throw_peer(path_, EFBIG, concat("write at byte ", offset));
    }
    const ssize_t count = ::pwrite(descriptor_, data.data(), data.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw_peer(path_, errno, concat("write ", data.size(), " bytes at byte ", offset));
    }
    data = data.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void File::start_write_back(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  if (std::in_range<off_t>(offset) && std::in_range<off_t>(bytes)) {
    ::sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
  }
}

void File::sync() const {
  if (::fsync(descriptor_) != 0) {
    throw_peer(path_, errno, "make the file durable");
  }
}

std::optional<FileExtent> File::next_stored(std::uint64_t offset) const {
  const std::uint64_t end = size();
  if (offset >= end) {
    return std::nullopt;
  }
  const off_t begin = ::lseek(descriptor_, static_cast<off_t>(offset), SEEK_DATA);
  if (begin < 0 && errno == ENXIO) {
    return std::nullopt;
  }
  const off_t hole = begin < 0 ? -1 : ::lseek(descriptor_, begin, SEEK_HOLE);
  if (hole < 0) {
    return FileExtent{.begin = offset, .end = end};
  }
  return FileExtent{.begin = static_cast<std::uint64_t>(begin), .end = static_cast<std::uint64_t>(hole)};
}

std::uint64_t File::size() const {
  return static_cast<std::uint64_t>(status_of(descriptor_, path_).st_size);
}

void File::require_unchanged() const {
  if (const FileIdentity now = identity_of(status_of(descriptor_, path_)); now != identity_) {
    throw_changed(path_, identity_, to_text(now));
  }
  struct stat named{};
  if (::stat(path_.c_str(), &named) != 0) {
    throw_changed(path_, identity_, concat("no file of that name: ", std::strerror(errno)));
  }
  if (const FileIdentity now = identity_of(named); now != identity_) {
    throw_changed(path_, identity_, concat("another file under that name: ", to_text(now)));
  }
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const File file = File::open_for_reading(path);
  const std::uint64_t size = file.size();
  if (size > max_bytes) {
    throw InputError({.code = Code::kFileTooLarge,
                      .what = "a text file is larger than any of its kind",
                      .where = path.string(),
                      .why = concat("expected at most ", max_bytes, " bytes, got ", size),
                      .fix = "check that the path names the file that is meant"});
  }
  std::string text(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text_file(const std::filesystem::path& path, const std::string& text) {
  StagedFile staged = StagedFile::create(path, text.size());
  staged.file().write_at(0, std::as_bytes(std::span(text)));
  staged.publish();
}

std::vector<std::string> list_directory(const std::filesystem::path& directory) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) {
    throw_unreadable(directory, "a readable directory", error.message());
  }
  std::ranges::sort(names);
  return names;
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory.empty() ? std::filesystem::path(".") : directory;
  const int descriptor = open_retrying(path, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) {
    throw_peer(path, errno, "open the directory");
  }
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) {
    throw_peer(path, error, "make the directory durable");
  }
}

} // namespace tieshard
