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
/// Bytes that are mapped at once, since mapped pages count as this process's memory. Windows begin at multiples of it,
/// where the kernel can enter huge pages: at others the copy takes three times as long.
constexpr std::uint64_t kWindow = 16 << 20;
constexpr std::uint64_t kXfsMagic = 0x58465342; // not in linux/magic.h

[[noreturn]] void fail(const File& file, const char* doing) {
  throw PeerError({.code = Code::kIoFailed,
                   .what = "the kernel refused a file operation",
                   .where = file.path().string(),
                   .why = concat("expected to ", doing, ", got: ", std::strerror(errno)),
                   .fix = "check the disk and the limits of this process (ulimit -a), then try again"});
}

/// Bytes [begin, end) of the file, mapped while this lives. Pre: `begin` is a multiple of kWindow
class Window {
 public:
  Window(const File& file, std::uint64_t begin, std::uint64_t end) : begin_(begin), bytes_(end - begin) {
    void* const pages =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor(), static_cast<off_t>(begin));
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

  /// What of `bytes`, which are to begin at byte `offset` of the file, lies in the window.
  void put(std::uint64_t offset, std::span<const std::byte> bytes) const {
    const std::uint64_t first = std::max(offset, begin_);
    const std::uint64_t last = std::min(offset + bytes.size(), begin_ + bytes_);
    if (first < last) {
      std::memcpy(data_ + (first - begin_), bytes.data() + (first - offset), last - first);
    }
  }

 private:
  std::uint64_t begin_;
  std::uint64_t bytes_;
  std::byte* data_ = nullptr;
};

void write_mapped(
    const File& file, std::uint64_t begin, std::uint64_t end, const StridedRange& range, const std::byte* data) {
  for (std::uint64_t window_begin = begin / kWindow * kWindow; window_begin < end; window_begin += kWindow) {
    const std::uint64_t window_end = std::min(window_begin + kWindow, end);
    const Window window(file, window_begin, window_end);
    // The first row that may reach into the window: at most one before it begins there.
    const std::uint64_t skipped = window_begin > begin ? (window_begin - begin) / range.stride : 0;
    for (std::uint64_t row = skipped; row < range.rows && begin + row * range.stride < window_end; ++row) {
      window.put(begin + row * range.stride, {data + row * range.row_bytes, range.row_bytes});
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
    write_mapped(file, begin, end, range, data);
    return;
  }
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    file.write_at(begin + row * range.stride, std::span(data + row * range.row_bytes, range.row_bytes));
  }
}

} // namespace tieshard
