// tieshard/cli/model_view.h
//
// Words for what the torch-free verbs look at: a checkpoint, its model and its tensors.
//
// Flow: inspect, ties, plan, demo -> [this] -> core/ties/resolved_model.h

#pragma once

#include <string>

#include "tieshard/core/ties/resolved_model.h"

namespace tieshard::cli {

/// "LlamaForCausalLM"; the model type when the config names no architecture.
std::string architecture_name(const HfConfig& config);

/// Where a stored tensor lies: "model.safetensors @ 31,104" (byte of the file).
std::string location(const Checkpoint& checkpoint, const StoredTensor& tensor);

/// "1 tie group", "2 shards": `one` in the plural where `count` is not 1.
std::string counted(std::size_t count, const std::string& one);

} // namespace tieshard::cli
