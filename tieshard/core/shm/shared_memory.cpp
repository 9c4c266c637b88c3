#include "tieshard/core/shm/shared_memory.h"

#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

[[noreturn]] void fail(const std::string& where, const std::string& why) {
  throw PeerError(
      {.code = Code::kIoFailed,
       .what = "memory could not be shared between processes",
       .where = where,
       .why = why,
       .fix = "check the memory limits (ulimit -a, the container's), that /proc is mounted, and that all ranks run as "
              "one user in one container; or use TIESHARD_BACKEND=gloo, which needs none of it"});
}

[[noreturn]] void fail(const std::string& where) {
  fail(where, std::strerror(errno));
}

/// A descriptor that is closed unless it is taken.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }
  int get() const {
    return number_;
  }
  int take() {
    return std::exchange(number_, -1);
  }

 private:
  int number_;
};

std::byte* map(const Descriptor& file, std::uint64_t bytes, const std::string& where) {
  void* mapping = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (mapping == MAP_FAILED) {
    fail(where);
  }
  return static_cast<std::byte*>(mapping);
}

std::uint64_t random_token() {
  std::uint64_t token = 0;
  if (::getrandom(&token, sizeof(token), 0) != sizeof(token)) {
    fail("getrandom");
  }
  return token;
}

} // namespace

std::string SharedMemoryAddress::to_text() const {
  return concat(process, " ", descriptor, " ", bytes, " ", token);
}

SharedMemoryAddress SharedMemoryAddress::from_text(const std::string& text) {
  std::istringstream in(text);
  SharedMemoryAddress address;
  if (!(in >> address.process >> address.descriptor >> address.bytes >> address.token) || !(in >> std::ws).eof()) {
    fail("the address of shared memory", concat("expected four numbers, got \"", text, "\""));
  }
  return address;
}

std::shared_ptr<SharedMemory> SharedMemory::create(std::uint64_t bytes) {
  const std::uint64_t whole = bytes + kHeaderBytes;
  const std::string where = concat("a memory file of ", whole, " bytes");
  if (bytes > kMostBytes) {
    fail(where, concat("expected at most ", kMostBytes, " bytes"));
  }
  Descriptor file(::memfd_create("tieshard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) {
    fail(where);
  }
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(whole)); error != 0) {
    fail(where, std::strerror(error));
  }
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) { // a cut file is a SIGBUS
    fail(where);
  }
  std::byte* mapping = map(file, whole, where);
  std::shared_ptr<SharedMemory> memory(new SharedMemory(mapping, whole, file.take()));
  const std::uint64_t token = random_token();
  std::memcpy(mapping, &token, sizeof(token));
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::open(const SharedMemoryAddress& address) {
  const std::string path = concat("/proc/", address.process, "/fd/", address.descriptor);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    fail(path);
  }
  if (static_cast<std::uint64_t>(status.st_size) != address.bytes || address.bytes < kHeaderBytes) {
    fail(path, concat("expected ", address.bytes, " bytes, got ", status.st_size));
  }
  std::byte* mapping = map(file, address.bytes, path);
  std::shared_ptr<SharedMemory> memory(new SharedMemory(mapping, address.bytes, -1));
  if (std::memcmp(mapping, &address.token, sizeof(address.token)) != 0) {
    fail(path, "it is the file of another process");
  }
  return memory;
}

SharedMemory::~SharedMemory() {
  close_descriptor();
  ::munmap(mapping_, bytes_);
}

SharedMemoryAddress SharedMemory::address() const {
  SharedMemoryAddress address{.process = ::getpid(), .descriptor = descriptor_, .bytes = bytes_};
  std::memcpy(&address.token, mapping_, sizeof(address.token));
  return address;
}

void SharedMemory::close_descriptor() noexcept {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
}

} // namespace tieshard
