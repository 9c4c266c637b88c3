#include "tieshard/core/io/shard_memory.h"

#include <new>

#include <sys/mman.h>

namespace tieshard {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;
constexpr std::uint64_t kSmallPage = 4096;
constexpr std::uint64_t kBlock = 32 * kHugePage; ///< for small pieces: what of it is not reached takes no memory
constexpr std::uint64_t kAlignment = 64;         ///< a cache line, and what vector instructions like best

std::uint64_t round_up(std::uint64_t number, std::uint64_t step) {
  return (number + step - 1) / step * step;
}

/// Pages that begin at a huge page's boundary. What of the end does not fill a huge page is given small ones, so that
/// nothing is wasted.
std::shared_ptr<std::byte> map_pages(std::uint64_t bytes) {
  const std::uint64_t reserved = bytes + kHugePage;
  void* const pages = ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw std::bad_alloc();
  }
  auto* const first = static_cast<std::byte*>(pages);
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  const std::uint64_t before = round_up(address, kHugePage) - address;
  if (before > 0) {
    ::munmap(first, before);
  }
  std::byte* const begin = first + before;
  const std::uint64_t kept = round_up(bytes, kSmallPage);
  if (const std::uint64_t after = reserved - before - kept; after > 0) {
    ::munmap(begin + kept, after);
  }
  ::madvise(begin, kept, MADV_HUGEPAGE); // where it is refused, small pages do
  return {begin, [kept](std::byte* data) { ::munmap(data, kept); }};
}

} // namespace

std::uint64_t ShardMemory::of_pieces(std::span<const std::uint64_t> pieces) {
  std::uint64_t total = 0;
  std::uint64_t small = 0;
  for (const std::uint64_t bytes : pieces) {
    (bytes >= kHugePage ? total : small) += round_up(bytes, bytes >= kHugePage ? kSmallPage : kAlignment);
  }
  // A block ends where the next piece, of less than a huge page, does not fit; its last huge page is there as a whole.
  const std::uint64_t blocks = small == 0 ? 0 : round_up(small, kBlock - kHugePage) / (kBlock - kHugePage);
  return total + small + blocks * kHugePage;
}

std::shared_ptr<void> ShardMemory::take(std::uint64_t bytes) {
  if (bytes >= kHugePage) {
    return map_pages(bytes);
  }
  if (block_ == nullptr || used_ + bytes > kBlock) {
    block_ = map_pages(kBlock);
    used_ = 0;
  }
  std::shared_ptr<void> piece(block_, block_.get() + used_);
  used_ += round_up(bytes, kAlignment);
  return piece;
}

} // namespace tieshard
