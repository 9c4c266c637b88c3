// tieshard/core/shm/shm_steps.h
//
// The pace at which a collective goes through the rings: as far ahead with writing as the others allow.
//
// Flow: shm_collectives, shm_regions -> [this] -> shm_group

#pragma once

#include <algorithm>
#include <cstddef>

#include "tieshard/core/shm/shm_group.h"

namespace tieshard {

/// One step and then another; a call without bytes is one step too, in which the ranks meet.
inline std::size_t steps_for(std::size_t bytes, std::size_t step_bytes) {
  return std::max<std::size_t>(1, (bytes + step_bytes - 1) / step_bytes);
}

/// Runs `steps` steps: write(step, piece) fills this rank's piece, read(step) uses the others'. Writes as far ahead as
/// the others let it without waiting, so that no rank waits for one that is a little later.
template <typename Write, typename Read>
void run_steps(ShmGroup& group, std::size_t steps, const Write& write, const Read& read) {
  std::size_t written = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    while (written < steps && (written == step || group.can_write())) {
      write(written, group.piece_to_write());
      group.post();
      ++written;
    }
    read(step);
    group.release();
  }
}

} // namespace tieshard
