#include "tieshard/core/io/row_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kShortRow = 64 << 10; ///< bytes; longer ones are worth a call
constexpr std::uint64_t kWindow = 8 << 20;    ///< mapped at once: its pages count as this process's memory
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kXfsMagic = 0x58465342; // not in linux/magic.h

[[noreturn]] void fail(const File& file, const char* doing) {
  throw PeerError({.code = Code::kIoFailed,
                   .what = "the kernel refused a file operation",
                   .where = file.path().string(),
                   .why = concat("expected to ", doing, ", got: ", std::strerror(errno)),
                   .fix = "check the disk and the limits of this process (ulimit -a), then try again"});
}

/// A part of the file, mapped while this lives.
class Window {
 public:
  Window(const File& file, std::uint64_t begin, std::uint64_t end)
      : first_(begin / kPage * kPage), bytes_(end - first_) {
    void* const pages =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor(), static_cast<off_t>(first_));
    if (pages == MAP_FAILED) {
      fail(file, "map a part of the file");
    }
    data_ = static_cast<std::byte*>(pages);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window() {
    ::munmap(data_, bytes_);
  }

  std::byte* at(std::uint64_t offset) const {
    return data_ + (offset - first_);
  }

 private:
  std::uint64_t first_;
  std::uint64_t bytes_;
  std::byte* data_ = nullptr;
};

void write_mapped(const File& file, std::uint64_t begin, const StridedRange& range, const std::byte* data) {
  const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, kWindow / range.stride);
  for (std::uint64_t row = 0; row < range.rows; row += rows_at_once) {
    const std::uint64_t rows = std::min(rows_at_once, range.rows - row);
    const std::uint64_t first = begin + row * range.stride;
    const Window window(file, first, first + (rows - 1) * range.stride + range.row_bytes);
    for (std::uint64_t index = 0; index < rows; ++index) {
      std::memcpy(window.at(first + index * range.stride), data + (row + index) * range.row_bytes, range.row_bytes);
    }
  }
}

} // namespace

bool takes_mapped_writes(const File& file, std::uint64_t bytes) {
  struct statfs system{};
  struct stat status{};
  if (::fstatfs(file.descriptor(), &system) != 0 || ::fstat(file.descriptor(), &status) != 0) {
    fail(file, "ask where the file lies");
  }
  constexpr std::array<std::uint64_t, 4> kLocal{EXT4_SUPER_MAGIC, kXfsMagic, TMPFS_MAGIC, OVERLAYFS_SUPER_MAGIC};
  constexpr std::int64_t kBlock = 512; // of st_blocks, whatever the file system's is
  return std::ranges::find(kLocal, static_cast<std::uint64_t>(system.f_type)) != kLocal.end() &&
         static_cast<std::uint64_t>(status.st_size) >= bytes && status.st_blocks * kBlock >= status.st_size;
}

void write_rows(const File& file, std::uint64_t begin, const StridedRange& range, const std::byte* data) {
  const std::uint64_t end = range.rows == 0 ? begin : begin + (range.rows - 1) * range.stride + range.row_bytes;
  if (range.rows > 1 && range.row_bytes < kShortRow && takes_mapped_writes(file, end)) {
    write_mapped(file, begin, range, data);
    return;
  }
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    file.write_at(begin + row * range.stride, std::span(data + row * range.row_bytes, range.row_bytes));
  }
}

} // namespace tieshard
