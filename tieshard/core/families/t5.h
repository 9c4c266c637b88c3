// tieshard/core/families/t5.h
//
// The T5 family (T5ForConditionalGeneration): T5, its version 1.1 and Flan-T5.
//
// Flow:   hf_config -> [this] -> families/family.h, runtime/models/t5.h
// Source: transformers T5Config and T5ForConditionalGeneration (5.24).

#pragma once

#include <cstdint>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/family.h"

namespace tieshard {

/// Of the feed-forward part: one matrix and relu, or a gate beside it.
enum class T5Activation { kRelu, kSilu, kGeluTanh, kGeluErf };

/// Sizes and switches, every default filled in.
struct T5Config {
  std::int64_t vocab_size = 0;
  std::int64_t model_size = 0; ///< d_model
  std::int64_t heads = 0;
  std::int64_t head_size = 64; ///< d_kv; heads * head_size need not be the model's size
  std::int64_t inner_size = 0; ///< d_ff
  std::int64_t encoder_layers = 0;
  std::int64_t decoder_layers = 0;
  std::int64_t position_buckets = 32;
  std::int64_t position_distance = 128; ///< from which on all distances share the last bucket
  double layer_norm_epsilon = 1e-6;
  double dropout = 0.1; ///< in training
  bool gated = false;   ///< wi_0 and wi_1 in place of wi: version 1.1
  T5Activation activation = T5Activation::kRelu;
  bool scale_head = true;            ///< what the head is applied to is multiplied by model_size ** -0.5
  std::int64_t pad_token_id = 0;     ///< takes the place of an ignored label in what the decoder is given
  std::int64_t decoder_start_id = 0; ///< what the decoder is given first

  /// @throws InputError config-missing-key, config-value (sizes that do not fit together, another activation)
  static T5Config from(const HfConfig& config);
};

/// The singleton behind find_family() for this family.
const Family& t5_family();

} // namespace tieshard
