#include "tieshard/core/families/expert_layers.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"

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

} // namespace

void set_expert_layers(const HfConfig& config,
                       DecoderConfig& decoder,
                       const ExpertsConfig& experts,
                       const ExpertKeys& keys) {
  const std::int64_t step = positive_or(config, "decoder_sparse_step", 1);
  const Json dense = dense_layers(config);
  if (experts.count == 0) {
    return;
  }
  for (std::size_t layer = 0; layer < decoder.layers.size(); ++layer) {
    const bool is_dense = std::ranges::find(dense, Json(layer)) != dense.end();
    decoder.layers[layer].experts = !is_dense && (static_cast<std::int64_t>(layer) + 1) % step == 0;
  }
  if (std::ranges::any_of(decoder.layers, &DecoderLayerConfig::experts)) {
    require_experts(config, decoder, experts, keys);
    decoder.experts = experts;
  }
}

} // namespace tieshard
