// tieshard/core/shm/peer_watch.h
//
// Whether other processes of this host still run.
//
// Flow:   shm_group -> [this] -> the kernel
// Source: pidfd_open(2). A pidfd stays with its process: a number that is used again does not mislead, and a process
//         that has ended but was not waited for counts as ended.

#pragma once

#include <cstdint>
#include <vector>

namespace tieshard {

/// Process ids and their handles. Not copyable; closes the handles.
class PeerWatch {
 public:
  /// @throws PeerError io-failed where the kernel gives no handles (before Linux 5.3, or forbidden)
  static void require_support();

  /// @param processes  ids, by rank; this process's own is never looked at (ranks may be threads of it)
  /// @throws PeerError io-failed
  explicit PeerWatch(const std::vector<std::int64_t>& processes);
  PeerWatch() = default;
  PeerWatch(PeerWatch&& other) noexcept : handles_(std::move(other.handles_)) {
    other.handles_.clear();
  }
  PeerWatch& operator=(PeerWatch&& other) noexcept {
    std::swap(handles_, other.handles_);
    return *this;
  }
  ~PeerWatch();

  bool has_ended(std::uint32_t rank) const;

 private:
  std::vector<int> handles_; ///< by rank; kOwn for this process, kEnded where there was none any more
};

} // namespace tieshard
