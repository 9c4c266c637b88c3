// tieshard/core/families/decoder_config.h
//
// A decoder-only model as numbers and switches: what tells one family of gated decoders from another. The table of its
// parameters and its module are both made from this, so they cannot disagree.
//
// Flow:   one file a family -> [this] -> decoder_table.h, activation_sizes.h, runtime/models/decoder.h
// Source: transformers 5.24 modeling and configuration files of llama, mistral, qwen2, qwen2_moe, qwen3, qwen3_moe,
//         mixtral, phi3, gemma, gemma2, gemma3 and gpt_oss.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tieshard/core/checkpoint/hf_config.h"

namespace tieshard {

/// What a root-mean-square norm multiplies by.
enum class NormScale {
  kWeight,          ///< its weight, in the dtype of its input (Llama)
  kWeightInFloat32, ///< its weight, and rounded to that dtype afterwards (GPT-OSS)
  kOnePlusWeight,   ///< one plus its weight, the same way (Gemma)
};

/// Of the gate in down(activation(gate(x)) * up(x)).
enum class GateActivation {
  kSilu,
  kGeluTanh, ///< the tanh approximation
  kGeluErf,  ///< the exact one
};

/// How a layer's projections are stored and registered.
enum class ProjectionLayout {
  kSeparate, ///< q_proj, k_proj, v_proj; gate_proj, up_proj
  kFused,    ///< qkv_proj with rows q | k | v; gate_up_proj with rows gate | up (Phi-3)
};

/// How a layer's experts are stored and registered.
enum class ExpertLayout {
  kMlpExperts,         ///< mlp.gate, mlp.experts.N.{gate,up,down}_proj (Qwen2-MoE, Qwen3-MoE)
  kBlockSparseMoe,     ///< block_sparse_moe.gate, block_sparse_moe.experts.N.{w1,w3,w2} (Mixtral)
  kStackedInterleaved, ///< mlp.router with bias, mlp.experts.{gate_up,down}_proj [E, in, out] with biases; columns of
                       ///< gate_up alternate gate, up; clamped SwiGLU (GPT-OSS)
};

/// A mixture of experts in place of a layer's MLP: each token goes through `chosen` of `count` experts.
struct ExpertsConfig {
  std::int64_t count = 0;
  std::int64_t chosen = 0;
  std::int64_t intermediate_size = 0; ///< of one expert
  ExpertLayout layout = ExpertLayout::kMlpExperts;
  /// Of one more expert that every token goes through, times the sigmoid of a gate of its own; 0: there is none. With
  /// kMlpExperts only (Qwen2-MoE).
  std::int64_t shared_intermediate_size = 0;
  bool renormalise = true;   ///< the chosen experts' weights sum to one
  double swiglu_limit = 7.0; ///< of kStackedInterleaved: gate <= limit, -limit <= up <= limit
};

/// What may differ from layer to layer.
struct DecoderLayerConfig {
  std::int64_t window = 0; ///< keys that a query sees, its own included; 0: all before it
  std::size_t rope = 0;    ///< which of DecoderConfig::ropes
  bool experts = false;    ///< DecoderConfig::experts in place of the MLP
};

/// Every default filled in and every size checked. Names are those of config.json where it has them.
struct DecoderConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0; ///< of the MLP; may be 0: its weights are then [0, hidden] and [hidden, 0]
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  std::optional<std::int64_t> pad_token_id{}; ///< padding_idx of the embedding: its row gets no input-side gradient

  double rms_norm_eps = 1e-6;
  NormScale norm_scale = NormScale::kWeight;
  bool branch_norms = false;    ///< pre/post_feedforward_layernorm too: a norm on what a branch gives (Gemma 2, 3)
  bool query_key_norms = false; ///< q_norm and k_norm [head_dim], before the rotation

  ProjectionLayout projections = ProjectionLayout::kSeparate;
  bool query_key_value_bias = false;
  bool output_bias = false; ///< of o_proj
  bool mlp_bias = false;
  GateActivation activation = GateActivation::kSilu;

  double attention_scale = 1.0;   ///< of the scores; mostly head_dim ** -0.5
  double attention_dropout = 0.0; ///< in training
  double attention_softcap = 0.0; ///< scores become cap * tanh(scores / cap); 0: they do not
  bool sinks = false;             ///< one more logit for each head, without a value (GPT-OSS)
  double logits_softcap = 0.0;    ///< of the head's logits; 0: none
  double embedding_scale = 1.0;   ///< of the embedding's rows, rounded to the weight's dtype (Gemma)

  std::vector<RopeConfig> ropes{};
  std::vector<DecoderLayerConfig> layers{}; ///< one for each decoder layer
  std::optional<ExpertsConfig> experts{};   ///< where a layer has them
};

} // namespace tieshard
