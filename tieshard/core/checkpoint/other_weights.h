// tieshard/core/checkpoint/other_weights.h
//
// What is said of a directory that holds something else than a model in safetensors: an adapter, or pickled weights.
//
// Flow:   checkpoint.cpp -> [this]
// Source: PEFT save_pretrained (adapter_config.json, adapter_model.*); transformers 4 save_pretrained
// (pytorch_model.bin).

#pragma once

#include <filesystem>
#include <optional>

#include "tieshard/core/base/error.h"

namespace tieshard {

/// Call where neither model.safetensors nor its index is there. Returns where config.json alone may be what is missing.
///
/// @throws InputError peft-adapter (names the base model, and the command that merges the adapter into it); no-weights
///         for pickled PyTorch weights (with the command that converts them)
void refuse_other_weights(const std::filesystem::path& directory);

/// An adapter beside a model's own weights: nothing applies it here. Nothing where there is none.
std::optional<Diagnostic> adapter_beside_model(const std::filesystem::path& directory);

} // namespace tieshard
