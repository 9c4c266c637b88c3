// tieshard/core/checkpoint/other_weights.h
//
// What is said of a directory that holds something else than a model: an adapter, or pickled weights.
//
// Flow:   checkpoint.cpp -> [this] -> adapter_names.h
// Source: PEFT save_pretrained (adapter_config.json, adapter_model.*); transformers 4 save_pretrained
// (pytorch_model.bin).

#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"

namespace tieshard {

/// Call where neither model.safetensors nor its index is there. Returns where config.json alone may be what is missing.
///
/// @throws InputError peft-adapter (names the base model, and the command that merges the adapter into it); no-weights
///         for pickled PyTorch weights (with the command that converts them)
void refuse_other_weights(const std::filesystem::path& directory);

/// Call with what model.safetensors or the shards hold, sorted by name.
///
/// @throws InputError peft-adapter where that is an adapter's weights alone, whatever the files are called
void refuse_adapter_weights(const std::filesystem::path& directory, const std::vector<StoredTensor>& tensors);

/// An adapter beside a model's own weights: nothing applies it here. Nothing where there is none.
std::optional<Diagnostic> adapter_beside_model(const std::filesystem::path& directory);

} // namespace tieshard
