// tieshard/core/checkpoint/adapter_names.h
//
// The weights of adapters, by their names: what PEFT trains beside a model and saves without it.
//
// Flow:   checkpoint.cpp, families/stored_names.cpp -> [this]
// Source: parameter names of PEFT's LoRA, DoRA, IA3, LoHa, LoKr, OFT, BOFT and VeRA layers.

#pragma once

#include <string_view>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"

namespace tieshard {

/// True for "model.layers.0.self_attn.q_proj.lora_A.weight" and others of that kind.
bool is_adapter_name(std::string_view name);

/// True when most of `tensors` (sorted by name) are adapters' and none is a weight that one of them is beside: then
/// there is no model to load.
bool are_adapters_alone(const std::vector<StoredTensor>& tensors);

} // namespace tieshard
