// Mixtral: Mistral with experts in place of each MLP.
// Source: transformers MixtralConfig and MixtralForCausalLM (5.24); names of experts as files have them.

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_mixtral(const HfConfig& config) {
  DecoderConfig decoder =
      read_decoder(config, {.num_key_value_heads = 8, .max_position_embeddings = 131'072, .rms_norm_eps = 1e-5});
  set_one_window(config, decoder, sliding_window(config, std::nullopt));
  const ExpertsConfig experts{.count = expert_count(config, 8),
                              .chosen = config.integer_or("num_experts_per_tok", 2),
                              .intermediate_size = decoder.intermediate_size,
                              .layout = ExpertLayout::kBlockSparseMoe};
  require_experts(config, decoder, experts);
  decoder.experts = experts;
  for (DecoderLayerConfig& layer : decoder.layers) {
    layer.experts = true;
  }
  refuse_true(config, "output_router_logits"); // adds a loss of the router
  refuse_other_number(config, "router_jitter_noise", 0.0);
  decoder.ropes = {read_rotary(config, decoder, {.rope = {.theta = 1e6}})};
  return decoder;
}

} // namespace

const Family& mixtral_family() {
  static const DecoderFamily family(
      {.name = "mixtral", .model_type = "mixtral", .architecture = "MixtralForCausalLM", .decoder = read_mixtral});
  return family;
}

} // namespace tieshard
