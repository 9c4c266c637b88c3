#include "tieshard/runtime/tensors/heap_allocator.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <malloc.h>
#include <sys/mman.h>

namespace tieshard {
namespace {

constexpr std::size_t kAlignment = 64; ///< as LibTorch's kernels expect
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kMapFrom = 32 << 20; ///< bytes; larger tensors are few, and would tear holes into the heap
constexpr int kNeverTrim = -1;
constexpr std::uint8_t kPriority = 10; ///< above LibTorch's own allocator

/// Stands right before the bytes of a tensor: what they were cut from.
struct Block {
  void* start = nullptr;
  std::size_t mapped = 0; ///< 0 for a block of the heap
};
static_assert(sizeof(Block) <= kAlignment);

/// Large blocks that were freed, for the next tensor of about their size. They stay as long as what is asked for is
/// there: a request that finds none frees them all, so that at most one step's large tensors are kept.
class FreedMappings {
 public:
  /// A block of at least `bytes` and not much more; nothing when there is none.
  Block take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      const bool fits = block->mapped >= bytes && block->mapped - bytes <= bytes / 4;
      if (fits && (best == blocks_.end() || block->mapped < best->mapped)) {
        best = block;
      }
    }
    if (best == blocks_.end()) {
      for (const Block& block : blocks_) {
        ::munmap(block.start, block.mapped);
      }
      blocks_.clear();
      return {};
    }
    const Block found = *best;
    blocks_.erase(best);
    return found;
  }

  void keep(const Block& block) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back(block);
  }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

FreedMappings& freed_mappings() {
  static auto* const mappings = new FreedMappings; // tensors may be freed as late as by static destructors
  return *mappings;
}

/// Zeroed by the kernel, or with what the tensor before left in it. Empty when there is no memory.
Block map_block(std::size_t bytes) {
  const std::size_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (const Block found = freed_mappings().take(mapped); found.start != nullptr) {
    return found;
  }
  void* const mapping = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return {};
  }
  ::madvise(mapping, mapped, MADV_HUGEPAGE); // fewer page faults
  return {.start = mapping, .mapped = mapped};
}

/// Cuts the tensor's bytes out of `block`, behind room for the note.
void* cut(const Block& block) {
  const auto first = reinterpret_cast<std::uintptr_t>(block.start) + sizeof(Block);
  void* const bytes = reinterpret_cast<void*>((first + kAlignment - 1) / kAlignment * kAlignment);
  std::memcpy(static_cast<std::byte*>(bytes) - sizeof(Block), &block, sizeof(Block));
  return bytes;
}

void free_bytes(void* bytes) {
  if (bytes == nullptr) {
    return;
  }
  Block block;
  std::memcpy(&block, static_cast<std::byte*>(bytes) - sizeof(Block), sizeof(Block));
  if (block.mapped == 0) {
    std::free(block.start);
  } else {
    freed_mappings().keep(block);
  }
}

void* allocate_bytes(std::size_t bytes) {
  if (bytes > SIZE_MAX / 2) {
    throw std::bad_alloc();
  }
  const std::size_t all = bytes + sizeof(Block) + kAlignment;
  const Block block = all < static_cast<std::size_t>(kMapFrom) ? Block{.start = std::malloc(all)} : map_block(all);
  if (block.start == nullptr) {
    throw std::bad_alloc();
  }
  return cut(block);
}

class HeapAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = bytes == 0 ? nullptr : allocate_bytes(bytes);
    return {data, data, &free_bytes, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_bytes;
  }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

} // namespace

void use_heap_allocator() {
  static HeapAllocator allocator;
  ::mallopt(M_MMAP_THRESHOLD, kMapFrom);
  ::mallopt(M_TRIM_THRESHOLD, kNeverTrim);
  c10::SetCPUAllocator(&allocator, kPriority);
}

} // namespace tieshard
