#include "tieshard/core/shm/shared_counter.h"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tieshard {
namespace {

/// Tells the core that this is a waiting loop.
void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace

void SharedCounter::advance_to(std::uint32_t value) noexcept {
  // Both orders are sequential: either this sees the sleeper, or the sleeper sees the number.
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    ::syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

bool SharedCounter::spin_until(std::uint32_t target, int tries) const noexcept {
  for (int i = 0; i < tries; ++i) {
    if (has_reached(target)) {
      return true;
    }
    relax();
  }
  return has_reached(target);
}

bool SharedCounter::sleep_until(std::uint32_t target, std::chrono::milliseconds slice) noexcept {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (static_cast<std::int32_t>(seen - target) < 0) {
    const timespec relative{.tv_sec = slice.count() / 1000, .tv_nsec = slice.count() % 1000 * 1'000'000};
    ::syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &relative, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return has_reached(target);
}

} // namespace tieshard
