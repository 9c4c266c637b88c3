// The two waits without which the ranks would read what is being written. They stand by themselves so that the tests
// can put a program together without one of them, which ThreadSanitizer has to notice.

#include "tieshard/core/shm/shm_group.h"

namespace tieshard {

void ShmGroup::wait_for_post(std::uint32_t peer) {
  wait(peer, block(peer).posted, released_ + 1);
}

void ShmGroup::wait_for_release(std::uint32_t peer) {
  wait(peer, block(peer).released, posted_ + 1 - kRingPieces);
}

} // namespace tieshard
