// tieshard/runtime/tensors/validate_shared_object.h
//
// Proves that names which are held to be tied are one tensor object, not two that are equal.
//
// Flow:   make_model, load, fsdp, examples -> [this]
// Source: the write-ups' TieResolver.validate_shared_object; there it looks the alias up in Python's
// named_parameters(),
//         which never lists it, so that it cannot fail. This one can.

#pragma once

#include <torch/nn/module.h>

#include "tieshard/core/ties/tie_registry.h"

namespace tieshard {

/// Checks each alias of `ties` in `module`. Names that `ties` holds apart must be different objects too.
/// @throws UsageError tie-not-shared (both names, and whether their values are equal), tie-unknown-name (a name of the
///         registry that the module does not have)
void validate_shared_object(const torch::nn::Module& module, const TieRegistry& ties);

/// For a module on its own: that what its registration says is consistent (each name one tensor of one shape), with the
/// ties it has by object identity. Returns them.
TieRegistry validate_shared_object(const torch::nn::Module& module);

} // namespace tieshard
