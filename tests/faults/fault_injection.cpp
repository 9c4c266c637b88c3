// tests/faults/fault_injection.cpp
//
// The C library's file operations with faults in them (fault_plan.h). A write that is killed has written half of its
// bytes; any other operation is killed before it is done, which is also just after the one before it.

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/faults/fault_plan.h"

namespace {

using tieshard::faults::Call;
using tieshard::faults::FaultPlan;
using tieshard::faults::Outcome;

/// The function of this name that would have been called.
template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

/// A path that is relative to an open directory.
std::string path_at(int directory, const char* path) {
  if (directory == AT_FDCWD || path[0] == '/') {
    return path;
  }
  const std::string link = "/proc/self/fd/" + std::to_string(directory);
  char target[4096];
  const ssize_t length = ::readlink(link.c_str(), target, sizeof(target));
  return length <= 0 ? path : std::string(target, static_cast<std::size_t>(length)) + "/" + path;
}

/// Does what the plan says for one operation: `action` when it passes.
template <typename Subject, typename Action>
int with_fault(Call call, const Subject& subject, Action&& action) {
  const FaultPlan& plan = FaultPlan::get();
  switch (plan.next(call, subject)) {
    case Outcome::kPass:
      break;
    case Outcome::kFail:
      errno = plan.error();
      return -1;
    case Outcome::kDie:
      plan.die();
  }
  return action();
}

/// @param half  what is done before the process is killed
template <typename Half, typename Action>
ssize_t write_with_fault(int descriptor, Half&& half, Action&& action) {
  const FaultPlan& plan = FaultPlan::get();
  switch (plan.next(Call::kWrite, descriptor)) {
    case Outcome::kPass:
      break;
    case Outcome::kFail:
      errno = plan.error();
      return -1;
    case Outcome::kDie:
      half();
      plan.die();
  }
  return action();
}

mode_t mode_of(int flags, std::va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

/// Only a file that may be made counts.
template <typename Action>
int open_with_fault(const std::string& path, int flags, Action&& action) {
  return (flags & O_CREAT) != 0 ? with_fault(Call::kMake, path, action) : action();
}

} // namespace

extern "C" {

ssize_t write(int descriptor, const void* data, size_t bytes) {
  static const auto next = real<ssize_t(int, const void*, size_t)>("write");
  return write_with_fault(
      descriptor, [&] { next(descriptor, data, bytes / 2); }, [&] { return next(descriptor, data, bytes); });
}

ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
  static const auto next = real<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return write_with_fault(
      descriptor,
      [&] { next(descriptor, data, bytes / 2, offset); },
      [&] { return next(descriptor, data, bytes, offset); });
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  return pwrite64(descriptor, data, bytes, offset);
}

ssize_t writev(int descriptor, const iovec* parts, int count) {
  static const auto next = real<ssize_t(int, const iovec*, int)>("writev");
  return write_with_fault(
      descriptor, [&] { next(descriptor, parts, count / 2); }, [&] { return next(descriptor, parts, count); });
}

ssize_t sendfile64(int out, int in, off64_t* offset, size_t bytes) noexcept {
  static const auto next = real<ssize_t(int, int, off64_t*, size_t)>("sendfile64");
  return write_with_fault(out, [&] { next(out, in, offset, bytes / 2); }, [&] { return next(out, in, offset, bytes); });
}

ssize_t sendfile(int out, int in, off_t* offset, size_t bytes) noexcept {
  return sendfile64(out, in, offset, bytes);
}

ssize_t copy_file_range(int in, off64_t* in_at, int out, off64_t* out_at, size_t bytes, unsigned int flags) {
  static const auto next = real<ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned int)>("copy_file_range");
  return write_with_fault(
      out,
      [&] { next(in, in_at, out, out_at, bytes / 2, flags); },
      [&] { return next(in, in_at, out, out_at, bytes, flags); });
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t bytes) {
  static const auto next = real<int(int, int, off64_t, off64_t)>("fallocate64");
  return with_fault(Call::kAllocate, descriptor, [&] { return next(descriptor, mode, offset, bytes); });
}

int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  return fallocate64(descriptor, mode, offset, bytes);
}

int ftruncate64(int descriptor, off64_t bytes) noexcept {
  static const auto next = real<int(int, off64_t)>("ftruncate64");
  return with_fault(Call::kAllocate, descriptor, [&] { return next(descriptor, bytes); });
}

int ftruncate(int descriptor, off_t bytes) noexcept {
  return ftruncate64(descriptor, bytes);
}

int fsync(int descriptor) {
  static const auto next = real<int(int)>("fsync");
  return with_fault(Call::kSync, descriptor, [&] { return next(descriptor); });
}

int fdatasync(int descriptor) {
  static const auto next = real<int(int)>("fdatasync");
  return with_fault(Call::kSync, descriptor, [&] { return next(descriptor); });
}

int rename(const char* from, const char* to) noexcept {
  static const auto next = real<int(const char*, const char*)>("rename");
  return with_fault(Call::kRename, std::string(from), [&] { return next(from, to); });
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to, unsigned int flags) noexcept {
  static const auto next = real<int(int, const char*, int, const char*, unsigned int)>("renameat2");
  const Call call = (flags & RENAME_EXCHANGE) != 0 ? Call::kExchange : Call::kRename;
  return with_fault(
      call, path_at(from_directory, from), [&] { return next(from_directory, from, to_directory, to, flags); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto next = real<int(const char*, mode_t)>("mkdir");
  return with_fault(Call::kMake, std::string(path), [&] { return next(path, mode); });
}

int unlink(const char* path) noexcept {
  static const auto next = real<int(const char*)>("unlink");
  return with_fault(Call::kRemove, std::string(path), [&] { return next(path); });
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  static const auto next = real<int(int, const char*, int)>("unlinkat");
  return with_fault(Call::kRemove, path_at(directory, path), [&] { return next(directory, path, flags); });
}

int rmdir(const char* path) noexcept {
  static const auto next = real<int(const char*)>("rmdir");
  return with_fault(Call::kRemove, std::string(path), [&] { return next(path); });
}

int remove(const char* path) noexcept {
  static const auto next = real<int(const char*)>("remove");
  return with_fault(Call::kRemove, std::string(path), [&] { return next(path); });
}

int open64(const char* path, int flags, ...) {
  static const auto next = real<int(const char*, int, ...)>("open64");
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_with_fault(path, flags, [&] { return next(path, flags, mode); });
}

int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open64(path, flags, mode);
}

} // extern "C"
