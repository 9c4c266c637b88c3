// tieshard/core/families/wrapper_parts.h
//
// Parts that wrappers of a module put into the names of its parameters.
//
// Flow:   name_mapping.cpp, stored_names.cpp -> [this]
// Source: torch.compile, DistributedDataParallel, FSDP1, activation checkpointing, fairscale, DeepSpeed, PEFT.

#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

constexpr std::array<std::string_view, 7> kWrapperParts = {
    "module",                     // DistributedDataParallel, DataParallel, DeepSpeed
    "_orig_mod",                  // torch.compile
    "_fsdp_wrapped_module",       // FSDP1
    "_fpw_module",                // fairscale and the first FSDP1
    "_checkpoint_wrapped_module", // activation checkpointing
    "_forward_module",            // Lightning Fabric
    "base_layer",                 // PEFT, around a layer that has an adapter
};

/// Where a wrapper stood in a name, and what it had put there.
struct WrapPoint {
  std::string module; ///< what stands before, without wrappers: "model.layers.0.", or "" at the front
  std::string parts;  ///< "_orig_mod.", or several that follow each other
};

struct UnwrappedName {
  std::string name;               ///< without the parts
  std::vector<WrapPoint> wrapped; ///< from the front; empty when there was none
};

/// Takes the parts of known wrappers out of `name`, wherever they stand. A part that is the model's own stays.
UnwrappedName unwrap(std::string_view name, const std::function<bool(std::string_view part)>& is_own);

} // namespace tieshard
