// Instead of shm_waits.cpp: nobody waits until what it overwrites has been read.

#include "tieshard/core/shm/shm_group.h"

namespace tieshard {

void ShmGroup::wait_for_post(std::uint32_t peer) {
  wait(peer, block(peer).posted, released_ + 1);
}

void ShmGroup::wait_for_release(std::uint32_t) {}

} // namespace tieshard
