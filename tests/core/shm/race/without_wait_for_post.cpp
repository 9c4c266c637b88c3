// Instead of shm_waits.cpp: nobody waits until what it reads has been written. It mostly has been after this pause, so
// that the ranks go on, but nothing orders the two.

#include <chrono>
#include <thread>

#include "tieshard/core/shm/shm_group.h"

namespace tieshard {

void ShmGroup::wait_for_post(std::uint32_t) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void ShmGroup::wait_for_release(std::uint32_t peer) {
  wait(peer, block(peer).released, posted_ + 1 - kRingPieces);
}

} // namespace tieshard
