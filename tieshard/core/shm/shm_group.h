// tieshard/core/shm/shm_group.h
//
// One rank's part in a group of ranks that share memory: the order in which pieces are written and read, and what
// happens when a rank ends or does not come.
//
// Flow:   shm_collectives -> [this] -> shm_layout, peer_watch
//
// All ranks go through the same steps. In a step a rank may write one piece into its ring and post it, read the pieces
// that others posted in this step, and then release the step. A piece of the ring is written again once all ranks have
// released the step that used it, so a rank may be kRingPieces steps ahead of the slowest and no more.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/shm/peer_watch.h"
#include "tieshard/core/shm/shm_layout.h"

namespace tieshard {

/// Ranks may be processes or threads; each has a ShmGroup of its own, used by one thread at a time. On destruction the
/// rank has left: the others' waits for it fail at once.
class ShmGroup {
 public:
  /// Says that this rank is here. @param memory  of make_shm; its creator may be any process
  /// @param timeout  longest wait for another rank without its progress
  /// @param names    what the group's ranks are called in messages, where that is another number than their place here
  /// @throws PeerError io-failed where the kernel does not tell of a process's end
  ShmGroup(std::shared_ptr<SharedMemory> memory,
           std::uint32_t rank,
           std::chrono::milliseconds timeout,
           std::vector<std::int64_t> names = {});
  ShmGroup(const ShmGroup&) = delete;
  ShmGroup& operator=(const ShmGroup&) = delete;
  ~ShmGroup();

  /// Waits until all ranks are here. To be called once, before all that follows. @throws PeerError collective-failed
  void meet();

  std::uint32_t rank() const noexcept {
    return rank_;
  }
  std::uint32_t size() const noexcept {
    return layout_.ranks();
  }
  std::uint64_t piece_bytes() const noexcept {
    return layout_.piece_bytes();
  }

  /// What the next begin() is for: a unit or a stage, in messages, and compared between the ranks. Nothing in
  /// particular where it was not called since the last one.
  void set_purpose(std::string_view text);

  /// Names the collective that the next steps belong to. @throws PeerError collective-failed after an earlier failure
  void begin(const Call& call);

  /// The piece that this rank's next post() will publish, once all ranks are done with what it held.
  /// @throws PeerError collective-failed
  std::byte* piece_to_write();
  /// True when piece_to_write() would not wait.
  bool can_write() const;
  void post();

  /// What `peer` (or this rank) posted in the oldest step that this rank has not released.
  /// @throws PeerError collective-failed, also where that rank's call is another one
  const std::byte* piece_of(std::uint32_t peer);
  void release();

 private:
  RankBlock& block(std::uint32_t peer) const {
    return layout_.block(peer);
  }
  // These two hold the algorithm together; each has a test in which it is taken out (shm_waits.cpp).
  void wait_for_post(std::uint32_t peer);
  void wait_for_release(std::uint32_t peer);

  void wait(std::uint32_t peer, SharedCounter& counter, std::uint32_t target);
  void fail_if_peer_has_ended(std::uint32_t peer) const;
  void fail_if_failed() const;
  std::uint32_t slowest(std::uint32_t awaited) const;
  [[noreturn]] void fail(ShmFailure failure) const;
  std::string cause(const ShmFailure& failure) const;
  void report_other_call(std::uint32_t peer);
  std::string name_of(std::uint32_t rank) const;

  ShmLayout layout_;
  std::uint32_t rank_;
  std::chrono::milliseconds timeout_;
  std::vector<std::int64_t> names_;
  std::int64_t process_;
  int spins_;
  PeerWatch watch_;
  std::uint32_t posted_;
  std::uint32_t released_;
  Call call_;
  CallPurpose purpose_; ///< of the next call
};

} // namespace tieshard
