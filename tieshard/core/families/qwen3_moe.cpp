// Qwen 3, mixture of experts: a layer is dense where mlp_only_layers or decoder_sparse_step say so.
// Source: transformers Qwen3MoeConfig and Qwen3MoeForCausalLM (5.24).

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/expert_layers.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_qwen3_moe(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config, {.num_key_value_heads = 4, .max_position_embeddings = 32'768});
  decoder.query_key_norms = true;
  decoder.query_key_value_bias = config.boolean_or("attention_bias", false);
  decoder.output_bias = decoder.query_key_value_bias;
  set_one_window(config, decoder, sliding_window_if_used(config));
  set_expert_layers(config,
                    decoder,
                    {.count = expert_count(config, 128),
                     .chosen = config.integer_or("num_experts_per_tok", 8),
                     .intermediate_size = config.integer_or("moe_intermediate_size", 768),
                     .layout = ExpertLayout::kMlpExperts,
                     .renormalise = config.boolean_or("norm_topk_prob", false)},
                    {.intermediate_size = "moe_intermediate_size"});
  refuse_true(config, "output_router_logits"); // adds a loss of the router
  decoder.ropes = {read_rotary(config, decoder)};
  return decoder;
}

} // namespace

const Family& qwen3_moe_family() {
  static const DecoderFamily family({.name = "qwen3_moe",
                                     .model_type = "qwen3_moe",
                                     .architecture = "Qwen3MoeForCausalLM",
                                     .decoder = read_qwen3_moe});
  return family;
}

} // namespace tieshard
