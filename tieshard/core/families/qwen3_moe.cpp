// Qwen 3, mixture of experts: a layer is dense where mlp_only_layers or decoder_sparse_step say so.
// Source: transformers Qwen3MoeConfig and Qwen3MoeForCausalLM (5.24).

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

/// `mlp_only_layers`, counted from 0.
Json dense_layers(const HfConfig& config) {
  if (!config.has("mlp_only_layers")) {
    return Json::array();
  }
  const Json& layers = config.json().at("mlp_only_layers");
  const bool usable =
      layers.is_array() && std::ranges::all_of(layers, [](const Json& layer) { return layer.is_number_unsigned(); });
  if (!usable) {
    refuse_config(config,
                  "mlp_only_layers",
                  concat("expected a list of layers, counted from 0, got ",
                         layers.dump(-1, ' ', false, Json::error_handler_t::replace)),
                  "write the layers that have an MLP, [] for none");
  }
  return layers;
}

void set_experts(const HfConfig& config, DecoderConfig& decoder) {
  const std::int64_t step = positive_or(config, "decoder_sparse_step", 1);
  const ExpertsConfig experts{.count = expert_count(config, 128),
                              .chosen = config.integer_or("num_experts_per_tok", 8),
                              .intermediate_size = config.integer_or("moe_intermediate_size", 768),
                              .layout = ExpertLayout::kMlpExperts,
                              .renormalise = config.boolean_or("norm_topk_prob", false)};
  const Json dense = dense_layers(config);
  if (experts.count == 0) {
    return;
  }
  for (std::size_t layer = 0; layer < decoder.layers.size(); ++layer) {
    const bool is_dense = std::ranges::find(dense, Json(layer)) != dense.end();
    decoder.layers[layer].experts = !is_dense && (static_cast<std::int64_t>(layer) + 1) % step == 0;
  }
  if (std::ranges::any_of(decoder.layers, &DecoderLayerConfig::experts)) {
    require_experts(config, decoder, experts);
    decoder.experts = experts;
  }
}

DecoderConfig read_qwen3_moe(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config, {.num_key_value_heads = 4, .max_position_embeddings = 32'768});
  decoder.query_key_norms = true;
  decoder.query_key_value_bias = config.boolean_or("attention_bias", false);
  decoder.output_bias = decoder.query_key_value_bias;
  set_one_window(config, decoder, sliding_window_if_used(config));
  set_experts(config, decoder);
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
