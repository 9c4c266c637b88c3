// tieshard/core/families/gated_decoder.h
//
// The parameters of the decoder that Llama brought and others took over: one norm before attention and one before a
// gated MLP.
//
// Flow:   llama.cpp, gemma.cpp -> [this] -> table_builder.h
// Source: transformers LlamaForCausalLM and GemmaForCausalLM (5.24).

#pragma once

#include <cstdint>

#include "tieshard/core/families/table_builder.h"

namespace tieshard {

struct GatedDecoderSizes {
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t query = 0;        ///< query heads times head size
  std::int64_t key_value = 0;    ///< key/value heads times head size
  std::int64_t intermediate = 0; ///< may be 0: its weights are then [0, hidden] and [hidden, 0], and legal
  bool attention_bias = false;
  bool mlp_bias = false;
};

/// Embedding, `layers` layers, last norm and head.
ParameterTable gated_decoder_table(const HfConfig& config, const GatedDecoderSizes& sizes);

/// `self_attn.{q,k,v,o}_proj` of one layer; `layer` is its module, e.g. "model.layers.0".
void add_attention_projections(TableBuilder& builder, const std::string& layer, const GatedDecoderSizes& sizes);

/// True for the frequencies that old files store for each layer; every model computes them from config.json.
bool is_rotary_buffer(std::string_view name);

/// The stack of layers: "model.layers".
inline constexpr std::string_view kDecoderStack = "model.layers";

} // namespace tieshard
