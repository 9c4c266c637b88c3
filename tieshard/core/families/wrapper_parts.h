// tieshard/core/families/wrapper_parts.h
//
// Parts that wrappers of a module put into the names of its parameters.
//
// Flow:   name_mapping.cpp -> [this] -> model_names.h
// Source: torch.compile, DistributedDataParallel, FSDP1, activation checkpointing, fairscale, DeepSpeed, PEFT.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/families/model_names.h"

namespace tieshard {

/// Where a wrapper stood in a name, and what it had put there.
struct WrapPoint {
  std::string module; ///< what stands before, without wrappers: "model.layers.0.", or "" at the front
  std::string parts;  ///< "_orig_mod.", or several that follow each other
};

struct UnwrappedName {
  std::string name;               ///< without the parts
  std::vector<WrapPoint> wrapped; ///< from the front; empty when there was none
};

/// Takes the parts of known wrappers out of `name`, wherever they stand. A part that the model has itself stays.
UnwrappedName unwrap(std::string_view name, const ModelNames& model);

} // namespace tieshard
