// GPT-OSS: experts in one tensor a layer, sinks, and a window in every other layer. A release stores its experts as
// MXFP4; here they are as the model holds them.
// Source: transformers GptOssConfig and GptOssForCausalLM (5.24).

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

/// What transformers has for a config.json that says nothing of rotary embedding.
RopeConfig default_rope() {
  return {.type = "yarn",
          .theta = 150'000.0,
          .factor = 32.0,
          .original_max_position_embeddings = 4096,
          .beta_fast = 32.0,
          .beta_slow = 1.0,
          .truncate = false};
}

void set_experts(const HfConfig& config, DecoderConfig& decoder) {
  const ExpertsConfig experts{.count = expert_count(config, 128),
                              .chosen = config.integer_or("num_experts_per_tok", 4),
                              .intermediate_size = decoder.intermediate_size,
                              .layout = ExpertLayout::kStackedInterleaved,
                              .swiglu_limit = config.number_or("swiglu_limit", 7.0)};
  require_experts(config, decoder, experts);
  decoder.experts = experts;
  for (DecoderLayerConfig& layer : decoder.layers) {
    layer.experts = true;
  }
  refuse_other_number(config, "swiglu_alpha", 1.702);
  refuse_true(config, "output_router_logits"); // adds a loss of the router
}

DecoderConfig read_gpt_oss(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config,
                                       {.num_key_value_heads = 8,
                                        .head_dim = 64,
                                        .max_position_embeddings = 131'072,
                                        .rms_norm_eps = 1e-5,
                                        .activation_key = ""}); // "hidden_act": "silu" is written and not used
  decoder.query_key_value_bias = config.boolean_or("attention_bias", true);
  decoder.output_bias = decoder.query_key_value_bias;
  decoder.norm_scale = NormScale::kWeightInFloat32;
  decoder.sinks = true;
  set_experts(config, decoder);
  set_windows_by_layer(config, decoder, sliding_window(config, 128), [](std::int64_t layer) { return layer % 2 == 0; });
  decoder.ropes = {read_rotary(config, decoder, {.rope = default_rope()})};
  return decoder;
}

} // namespace

const Family& gpt_oss_family() {
  static const DecoderFamily family(
      {.name = "gpt_oss", .model_type = "gpt_oss", .architecture = "GptOssForCausalLM", .decoder = read_gpt_oss});
  return family;
}

} // namespace tieshard
