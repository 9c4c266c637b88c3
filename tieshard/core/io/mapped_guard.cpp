#include "tieshard/core/io/mapped_guard.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard {

struct GuardedRange {
  std::atomic<std::uintptr_t> begin = 0;     ///< 0: free
  std::atomic<std::uintptr_t> end = 0;       ///< written last when a guard begins, first when it ends
  std::atomic<std::uintptr_t> failed_at = 0; ///< address of the first page that failed; 0: none
  std::string file{};                        ///< not for the handler
  std::uint64_t offset = 0;
};

namespace {

constexpr std::size_t kRangesInBlock = 256;

/// Ranges lie in blocks that are linked once and never freed, so that the handler walks them without a lock.
struct Block {
  std::array<GuardedRange, kRangesInBlock> ranges{};
  Block* next = nullptr; ///< fixed before the block can be seen
};

std::atomic<Block*> blocks = nullptr;
std::atomic<int> failed_ranges = 0;
std::uintptr_t page_bytes = 4096;

/// Handlers that were there: the one before the first guard, and the one in front of which this one was put last.
struct sigaction original_action{};
std::atomic<const struct sigaction*> previous_action = nullptr;
thread_local int passing_on = 0; ///< depth: a later handler may hand back what it was handed

std::mutex& registry_mutex() {
  static std::mutex mutex;
  return mutex;
}

GuardedRange* find_range(std::uintptr_t address) {
  for (Block* block = blocks; block != nullptr; block = block->next) {
    for (GuardedRange& range : block->ranges) {
      const std::uintptr_t end = range.end;
      const std::uintptr_t begin = range.begin;
      if (begin != 0 && address >= begin && address < end && range.end == end) { // else it is changing hands
        return &range;
      }
    }
  }
  return nullptr;
}

/// Zeros for the page of `address` and the rest of its range: what lies behind the end of a file is all gone.
bool bridge(std::uintptr_t address) {
  GuardedRange* const range = find_range(address);
  if (range == nullptr) {
    return false;
  }
  const std::uintptr_t page = address / page_bytes * page_bytes;
  void* const pages = reinterpret_cast<void*>(page);
  if (::mmap(pages,
             range->end.load() - page,
             PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
             -1,
             0) == MAP_FAILED) {
    return false;
  }
  std::uintptr_t none = 0;
  if (range->failed_at.compare_exchange_strong(none, page)) {
    ++failed_ranges;
  }
  return true;
}

void pass_on(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
  ++passing_on;
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else if (action.sa_handler == SIG_DFL || (action.sa_handler == SIG_IGN && info->si_code > 0)) {
    // A fault comes again on return and ends the process; a signal that was sent has to be sent once more.
    ::signal(signal, SIG_DFL);
    if (info->si_code <= 0) {
      ::raise(signal);
    }
  } else if (action.sa_handler != SIG_IGN) {
    action.sa_handler(signal);
  }
  --passing_on;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool fault = info->si_code == BUS_ADRERR; // not poisoned memory, which is no change of a file
  if (!fault || !bridge(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    struct sigaction default_action{};
    default_action.sa_handler = SIG_DFL;
    pass_on(passing_on == 0   ? *previous_action.load()
            : passing_on == 1 ? original_action
                              : default_action,
            signal,
            info,
            context);
  }
  errno = error;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error;
}

/// Pre: the registry's mutex is held.
void put_handler_in_front() {
  struct sigaction current{};
  ::sigaction(SIGBUS, nullptr, &current);
  if (is_ours(current)) {
    return;
  }
  if (previous_action.load() == nullptr) {
    original_action = current;
  }
  static std::vector<std::unique_ptr<struct sigaction>> kept; // the handler may still be reading the one before
  kept.push_back(std::make_unique<struct sigaction>(current));
  previous_action = kept.back().get();
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

/// Pre: the registry's mutex is held.
std::vector<GuardedRange*>& free_ranges() {
  static std::vector<GuardedRange*> ranges;
  return ranges;
}

/// Pre: the registry's mutex is held.
GuardedRange& take_range() {
  std::vector<GuardedRange*>& ranges = free_ranges();
  if (ranges.empty()) {
    auto* const block = new Block; // never freed: the handler may be walking it
    block->next = blocks.load();
    for (GuardedRange& range : block->ranges) {
      ranges.push_back(&range);
    }
    blocks = block;
  }
  GuardedRange& range = *ranges.back();
  ranges.pop_back();
  return range;
}

[[noreturn]] void throw_failed(const GuardedRange& range) {
  const std::uint64_t byte = range.offset + (range.failed_at - range.begin);
  throw PeerError({.code = Code::kFileChanged,
                   .what = "a mapped weights file could not be read any more",
                   .where = concat(range.file, ", byte ", byte),
                   .why = concat("expected ",
                                 range.end - range.begin,
                                 " bytes from byte ",
                                 range.offset,
                                 " on for as long as they are mapped, got none from byte ",
                                 byte,
                                 " on: the file was cut, or its disk failed"),
                   .fix = "load again, and keep files as they are while they are in use; --no-mmap copies them"});
}

} // namespace

MappedGuard::MappedGuard(const std::filesystem::path& file,
                         std::uint64_t offset,
                         const std::byte* pages,
                         std::uint64_t bytes) {
  const std::lock_guard lock(registry_mutex());
  page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  put_handler_in_front();
  range_ = &take_range();
  range_->file = file.string();
  range_->offset = offset;
  range_->failed_at = 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(pages);
  range_->begin = begin;
  range_->end = begin + bytes;
}

MappedGuard::MappedGuard(MappedGuard&& other) noexcept : range_(std::exchange(other.range_, nullptr)) {}

MappedGuard& MappedGuard::operator=(MappedGuard&& other) noexcept {
  std::swap(range_, other.range_);
  return *this;
}

MappedGuard::~MappedGuard() {
  if (range_ == nullptr) {
    return;
  }
  const std::lock_guard lock(registry_mutex());
  range_->end = 0;
  if (range_->failed_at != 0) {
    --failed_ranges;
  }
  range_->begin = 0;
  free_ranges().push_back(range_);
}

void MappedGuard::require_intact() const {
  if (range_ != nullptr && range_->failed_at != 0) {
    throw_failed(*range_);
  }
}

void require_mappings_intact() {
  if (previous_action.load() == nullptr) {
    return; // nothing was ever guarded
  }
  const std::lock_guard lock(registry_mutex());
  put_handler_in_front();
  if (failed_ranges == 0) {
    return;
  }
  for (const Block* block = blocks; block != nullptr; block = block->next) {
    for (const GuardedRange& range : block->ranges) {
      if (range.begin != 0 && range.failed_at != 0) {
        throw_failed(range);
      }
    }
  }
}

} // namespace tieshard
