// tieshard/core/families/gpt2.h
//
// The GPT-2 family (GPT2LMHeadModel): weights of linear layers are [in, out].
//
// Flow:   hf_config -> [this] -> families/family.h, runtime/models/gpt2.h
// Source: transformers GPT2Config and GPT2LMHeadModel (5.24).

#pragma once

#include <cstdint>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/family.h"

namespace tieshard {

/// Sizes and switches, every default filled in.
struct Gpt2Config {
  std::int64_t vocab_size = 0;
  std::int64_t positions = 0; ///< that have an embedding: the longest sequence
  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t inner_size = 0; ///< width of the MLP
  double layer_norm_epsilon = 1e-5;
  double attention_dropout = 0.1; ///< in training, as the two below
  double residual_dropout = 0.1;
  double embedding_dropout = 0.1;
  bool scale_attention = true; ///< scores by head size ** -0.5
  bool scale_by_layer = false; ///< and by 1 / (layer + 1)
  bool tanh_gelu = true;       ///< gelu_new; else the exact gelu
  bool cross_attention = false;

  /// @throws InputError config-missing-key, config-value (sizes that do not fit together, another activation)
  static Gpt2Config from(const HfConfig& config);
};

/// That a sequence of `tokens` has positions, where `config` is of this family: it has an embedding for each and no
/// more.
/// @throws InputError config-value
void require_positions(const HfConfig& config, std::int64_t tokens);

/// The singleton behind find_family() for this family.
const Family& gpt2_family();

} // namespace tieshard
