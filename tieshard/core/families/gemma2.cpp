// Gemma 2: Gemma with norms on what each branch gives, capped scores and logits, and a window in every other layer.
// Source: transformers Gemma2Config and Gemma2ForCausalLM (5.24).

#include <cmath>

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_gemma2(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config,
                                       {.num_key_value_heads = 4,
                                        .head_dim = 256,
                                        .max_position_embeddings = 8192,
                                        .pad_token_id = 0,
                                        .activation_key = "hidden_activation",
                                        .activation = "gelu_pytorch_tanh",
                                        .softcaps = true});
  decoder.norm_scale = NormScale::kOnePlusWeight;
  decoder.branch_norms = true;
  decoder.query_key_value_bias = config.boolean_or("attention_bias", false);
  decoder.output_bias = decoder.query_key_value_bias;
  decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.hidden_size));
  decoder.attention_scale = 1.0 / std::sqrt(static_cast<double>(positive_or(config, "query_pre_attn_scalar", 256)));
  decoder.attention_softcap = softcap(config, "attn_logit_softcapping", 50.0);
  decoder.logits_softcap = softcap(config, "final_logit_softcapping", 30.0);
  refuse_true(config, "use_bidirectional_attention");
  set_windows_by_layer(
      config, decoder, sliding_window(config, 4096), [](std::int64_t layer) { return layer % 2 == 0; });
  decoder.ropes = {read_rotary(config, decoder)};
  return decoder;
}

} // namespace

const Family& gemma2_family() {
  static const DecoderFamily family({.name = "gemma2",
                                     .model_type = "gemma2",
                                     .architecture = "Gemma2ForCausalLM",
                                     .tied_by_default = true,
                                     .decoder = read_gemma2});
  return family;
}

} // namespace tieshard
