// tieshard/core/shm/shared_counter.h
//
// A number in shared memory that one rank raises and the others wait for.
//
// Flow:   shm_layout, shm_group -> [this] -> the kernel (futex)
// Source: futex(2), futex(7).
//
// What the owner wrote before advance() is seen by whoever found the new number. Numbers wrap around: "reached" means
// that the difference, taken as a signed number, is not negative.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tieshard {

/// Lies in shared memory, zeroed. The two halves have cache lines of their own: waiters that go to sleep do not disturb
/// those that read the number.
class SharedCounter {
 public:
  std::uint32_t value() const noexcept {
    return value_.load(std::memory_order_acquire);
  }

  bool has_reached(std::uint32_t target) const noexcept {
    return static_cast<std::int32_t>(value() - target) >= 0;
  }

  /// Only its owner may. Wakes whoever sleeps.
  void advance_to(std::uint32_t value) noexcept;

  /// Looks up to `tries` times, without giving the core up. True once the target is reached.
  bool spin_until(std::uint32_t target, int tries) const noexcept;

  /// Sleeps until the target is reached, or about `slice` has passed, or for no reason. True once it is reached.
  bool sleep_until(std::uint32_t target, std::chrono::milliseconds slice) noexcept;

 private:
  alignas(64) std::atomic<std::uint32_t> value_;
  alignas(64) std::atomic<std::uint32_t> sleepers_;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "locks do not work across processes");

} // namespace tieshard
