// tieshard/core/families/expert_layers.h
//
// Which layers of a decoder have experts in place of their MLP.
//
// Flow:   one file a family -> [this] -> decoder_config.h
// Source: transformers' Qwen2MoeConfig and Qwen3MoeConfig (5.24): mlp_only_layers and decoder_sparse_step.

#pragma once

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/decoder_config.h"
#include "tieshard/core/families/decoder_fields.h"

namespace tieshard {

/// Gives `experts` to each `decoder_sparse_step`th layer that `mlp_only_layers` does not name; to none where their
/// count is 0. Where no layer has them, `decoder.experts` stays empty.
/// @param keys  for errors
/// @throws InputError config-value: another list than one of layers, a step below 1, what require_experts refuses
void set_expert_layers(const HfConfig& config,
                       DecoderConfig& decoder,
                       const ExpertsConfig& experts,
                       const ExpertKeys& keys);

} // namespace tieshard
