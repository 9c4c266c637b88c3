// tieshard/core/families/llama.h
//
// The Llama family (LlamaForCausalLM): Llama 2 and 3, SmolLM2 and others that use its config.
//
// Flow:   hf_config -> [this] -> families/family.h, runtime/models/llama.h
// Source: transformers LlamaConfig and LlamaForCausalLM (5.24).

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/family.h"

namespace tieshard {

/// Sizes and switches of a Llama model, every default filled in.
struct LlamaConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0; ///< num_attention_heads when absent
  std::int64_t head_dim = 0;            ///< hidden_size / num_attention_heads when absent or null
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double attention_dropout = 0.0;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::optional<std::int64_t> pad_token_id; ///< padding_idx of the embedding: its row gets no input-side gradient
  RopeConfig rope;

  /// @throws InputError config-missing-key, config-value (sizes that do not fit together, an activation other than
  /// silu,
  ///         a rope type other than default, linear and llama3)
  static LlamaConfig from(const HfConfig& config);
};

/// The singleton behind find_family() for this family.
const Family& llama_family();

} // namespace tieshard
