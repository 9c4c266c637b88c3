// tieshard/runtime/mesh/shm_rendezvous.h
//
// Whether the ranks of a group can share memory, and the memory if they can: an agreement of all of them.
//
// Flow: shm_backend -> [this] (roll_call) -> core/shm
//
// Note: [Two hosts] Names of hosts are not asked: two may have one name, and containers often do. What ranks say of
//       themselves decides first (HostIdentity). Where it is equal and they still cannot open each other's memory
//       (another user, a hidden /proc, machines that are copies of one snapshot), that shows when they try: the memory
//       has a random token in it. Any of it on one rank makes all ranks use Gloo.

#pragma once

#include <memory>
#include <string>

#include "tieshard/core/shm/shm_group.h"
#include "tieshard/runtime/mesh/roll_call.h"

namespace tieshard {

/// A group that has met, or why there is none.
struct ShmMeeting {
  std::unique_ptr<ShmGroup> group;
  std::string why_not;
};

/// What two ranks have in common that count as on one host. Ranks in two network namespaces do not, although they could
/// share memory: each namespace has addresses of its own, as a host has.
struct HostIdentity {
  std::string kernel;    ///< random, made at each boot
  std::string processes; ///< the namespace of process ids: containers of one host have several
  std::string network;   ///< the namespace of network interfaces

  /// Of this process. Where it cannot be known (no /proc) it is equal to no other.
  static HostIdentity own();

  /// For the others, and back; of another text nothing is equal to anything.
  std::string to_text() const;
  static HostIdentity from_text(const std::string& text);
};

/// Why two ranks do not share memory, to be read after "rank 1 is "; empty where nothing speaks against it.
std::string difference(const HostIdentity& mine, const HostIdentity& theirs);

/// See connect_shm. @throws PeerError rendezvous-failed; collective-failed when a rank ends meanwhile
ShmMeeting meet_over_shm(RollCall& calls, bool wanted);

} // namespace tieshard
