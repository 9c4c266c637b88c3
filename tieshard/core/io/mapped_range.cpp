#include "tieshard/core/io/mapped_range.h"

#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace tieshard {
namespace {

#ifdef MADV_POPULATE_READ
constexpr int kPopulateRead = MADV_POPULATE_READ;
#else
constexpr int kPopulateRead = 22; // of Linux 5.14; the headers may be older than the kernel
#endif

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

} // namespace

std::unique_ptr<MappedRange> MappedRange::map(const File& file, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t before = offset % page_size();
  const std::uint64_t mapped = bytes + before;
  const std::uint64_t rounded = (mapped + page_size() - 1) / page_size() * page_size();
  void* const pages = ::mmap(
      nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.descriptor(), static_cast<off_t>(offset - before));
  if (pages == MAP_FAILED) {
    return nullptr;
  }
  auto* const first = static_cast<std::byte*>(pages);
  MappedGuard guard(file.path(), offset - before, first, rounded);
  return std::unique_ptr<MappedRange>(new MappedRange(first, rounded, first + before, std::move(guard)));
}

MappedRange::MappedRange(std::byte* pages, std::uint64_t page_bytes, std::byte* data, MappedGuard guard)
    : pages_(pages), pages_bytes_(page_bytes), data_(data), guard_(std::move(guard)) {}

MappedRange::~MappedRange() {
  guard_ = MappedGuard(); // before another mapping can get these addresses
  ::munmap(pages_, pages_bytes_);
}

void MappedRange::populate(std::uint64_t first, std::uint64_t bytes) const {
  const std::uint64_t begin = static_cast<std::uint64_t>(data_ - pages_) + first;
  const std::uint64_t page = begin / page_size() * page_size();
  if (::madvise(pages_ + page, begin + bytes - page, kPopulateRead) == 0) {
    return;
  }
  // An older kernel, or a page that cannot be read: looking at each finds out, and the guard takes note.
  for (std::uint64_t at = page; at < begin + bytes; at += page_size()) {
    static_cast<void>(*static_cast<const volatile std::byte*>(pages_ + at));
  }
}

} // namespace tieshard
