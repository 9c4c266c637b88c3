// Gemma 3 without its vision part: norms on queries and keys, and rotary parameters of its own for layers with a
// window. Source: transformers Gemma3TextConfig and Gemma3ForCausalLM (5.24).

#include <cmath>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_sizes(const HfConfig& config) {
  return read_decoder(config,
                      {.num_key_value_heads = 4,
                       .head_dim = 256,
                       .max_position_embeddings = 131'072,
                       .pad_token_id = 0,
                       .activation_key = "hidden_activation",
                       .activation = "gelu_pytorch_tanh",
                       .softcaps = true});
}

/// transformers reads this field and applies it nowhere.
void refuse_score_cap(const HfConfig& config) {
  if (config.has("attn_logit_softcapping")) {
    refuse_config(config,
                  "attn_logit_softcapping",
                  "expected null, as no release caps the scores",
                  "write null, or use a checkpoint that was trained without");
  }
}

void set_layers(const HfConfig& config, DecoderConfig& decoder) {
  const std::int64_t pattern = positive_or(config, "sliding_window_pattern", 6); // version 4: each such layer is full
  set_windows_by_layer(config, decoder, sliding_window(config, 4096), [pattern](std::int64_t layer) {
    return (layer + 1) % pattern != 0;
  });
  decoder.ropes = {read_rotary(config, decoder, {.rope = {.theta = 1e6}}, "full_attention"),
                   read_rotary(config, decoder, {.rope = {.theta = 1e4}}, "sliding_attention")};
  for (DecoderLayerConfig& layer : decoder.layers) {
    layer.rope = layer.window == 0 ? 0 : 1;
  }
}

DecoderConfig read_gemma3_text(const HfConfig& config) {
  DecoderConfig decoder = read_sizes(config);
  decoder.norm_scale = NormScale::kOnePlusWeight;
  decoder.branch_norms = true;
  decoder.query_key_norms = true;
  decoder.query_key_value_bias = config.boolean_or("attention_bias", false);
  decoder.output_bias = decoder.query_key_value_bias;
  decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.hidden_size));
  decoder.attention_scale = 1.0 / std::sqrt(static_cast<double>(positive_or(config, "query_pre_attn_scalar", 256)));
  decoder.logits_softcap = softcap(config, "final_logit_softcapping", std::nullopt);
  refuse_score_cap(config);
  refuse_true(config, "use_bidirectional_attention");
  set_layers(config, decoder);
  return decoder;
}

} // namespace

const Family& gemma3_text_family() {
  static const DecoderFamily family({.name = "gemma3_text",
                                     .model_type = "gemma3_text",
                                     .architecture = "Gemma3ForCausalLM",
                                     .tied_by_default = true,
                                     .decoder = read_gemma3_text});
  return family;
}

} // namespace tieshard
