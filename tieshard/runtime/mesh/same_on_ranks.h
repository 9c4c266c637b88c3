// tieshard/runtime/mesh/same_on_ranks.h
//
// What every rank has to have been told alike: compared before it is used, and named where it is not.
//
// Flow: device_mesh, fsdp, train -> [this] -> collectives

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard {

/// A value under the name that messages show: {"--lr", "0.0001"}.
struct NamedText {
  std::string name;
  std::string value;
};

/// What differs between the ranks' lists: "--lr is 0.0001 on rank 0, 0.5 on ranks 1 and 2". Of many names the first
/// few; a name that a rank does not list is "not given" there. The same text on every rank; empty where nothing
/// differs. Names stand once in a list, in any order. Every rank must call it.
///
/// @param stage  what is being compared, for messages: "flags"
/// @throws PeerError collective-failed
std::string difference_over_ranks(const DeviceMesh& mesh, std::string_view stage, const std::vector<NamedText>& mine);

/// Refuses on every rank what differs on any. @param refusal  its code, what and fix; where and why are set here
/// @throws InputError
void require_equal_on_ranks(const DeviceMesh& mesh,
                            std::string_view stage,
                            const std::vector<NamedText>& mine,
                            Diagnostic refusal);

} // namespace tieshard
