// Qwen 1.5 and 2, mixture of experts: Qwen 2 whose layers, but for those that stay dense, have experts to choose from
// and one that all tokens share. Source: transformers Qwen2MoeConfig and Qwen2MoeForCausalLM (5.24).

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/expert_layers.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_qwen2_moe(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config, {.num_key_value_heads = 16, .max_position_embeddings = 32'768});
  decoder.query_key_value_bias = config.boolean_or("qkv_bias", true);
  const auto window = sliding_window_if_used(config);
  const std::int64_t end = config.integer_or("max_window_layers", 28);
  set_windows_by_layer(
      config, decoder, window, [&](std::int64_t layer) { return window && layer < end && layer % 2 == 0; });
  set_expert_layers(config,
                    decoder,
                    {.count = config.integer_or("num_experts", 60),
                     .chosen = config.integer_or("num_experts_per_tok", 4),
                     .intermediate_size = config.integer_or("moe_intermediate_size", 1408),
                     .layout = ExpertLayout::kMlpExperts,
                     .shared_intermediate_size = positive_or(config, "shared_expert_intermediate_size", 5632),
                     .renormalise = config.boolean_or("norm_topk_prob", false)},
                    {.count = "num_experts", .intermediate_size = "moe_intermediate_size"});
  refuse_true(config, "output_router_logits"); // adds a loss of the router
  decoder.ropes = {read_rotary(config, decoder)};
  return decoder;
}

} // namespace

const Family& qwen2_moe_family() {
  static const DecoderFamily family({.name = "qwen2_moe",
                                     .model_type = "qwen2_moe",
                                     .architecture = "Qwen2MoeForCausalLM",
                                     .decoder = read_qwen2_moe});
  return family;
}

} // namespace tieshard
