#include "tieshard/core/families/attention_windows.h"

#include <vector>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/decoder_fields.h"

namespace tieshard {
namespace {

constexpr const char* kAsTrained = "write the kinds of attention that the model was trained with";

bool is_sliding(const HfConfig& config, const Json& kind) {
  if (kind == "sliding_attention") {
    return true;
  }
  if (kind == "full_attention" || kind == "attention") { // the second: an older name
    return false;
  }
  refuse_config(config,
                "layer_types",
                concat("supported: full_attention, sliding_attention; got ",
                       kind.dump(-1, ' ', false, Json::error_handler_t::replace)),
                "use a checkpoint with these kinds of layers");
}

/// One entry for each layer; nothing where the file has no list.
std::optional<std::vector<bool>> stated_kinds(const HfConfig& config, std::size_t layers) {
  if (!config.has("layer_types")) {
    return std::nullopt;
  }
  const Json& kinds = config.json().at("layer_types");
  if (!kinds.is_array() || kinds.size() != layers) {
    refuse_config(config,
                  "layer_types",
                  concat("expected a list of ", layers, " kinds, one for each layer, got ", kinds.size()),
                  kAsTrained);
  }
  std::vector<bool> slides;
  for (const Json& kind : kinds) {
    slides.push_back(is_sliding(config, kind));
  }
  return slides;
}

} // namespace

std::optional<std::int64_t> sliding_window(const HfConfig& config, std::optional<std::int64_t> fallback) {
  if (is_null(config, "sliding_window") || (!config.has("sliding_window") && !fallback)) {
    return std::nullopt;
  }
  return positive_or(config, "sliding_window", fallback.value_or(0));
}

std::optional<std::int64_t> sliding_window_if_used(const HfConfig& config) {
  return config.boolean_or("use_sliding_window", false) ? sliding_window(config, 4096) : std::nullopt;
}

void set_one_window(const HfConfig& config, DecoderConfig& decoder, std::optional<std::int64_t> window) {
  const auto kinds = stated_kinds(config, decoder.layers.size());
  for (std::size_t layer = 0; layer < decoder.layers.size(); ++layer) {
    if (kinds && (*kinds)[layer] != window.has_value()) {
      refuse_config(config,
                    "layer_types",
                    concat("the family has ",
                           window ? "sliding_attention" : "full_attention",
                           " in all layers, as sliding_window says; layer ",
                           layer,
                           " is another kind"),
                    kAsTrained);
    }
    decoder.layers[layer].window = window.value_or(0);
  }
}

void set_windows_by_layer(const HfConfig& config,
                          DecoderConfig& decoder,
                          std::optional<std::int64_t> window,
                          const std::function<bool(std::int64_t layer)>& slides) {
  const auto kinds = stated_kinds(config, decoder.layers.size());
  for (std::size_t layer = 0; layer < decoder.layers.size(); ++layer) {
    if (!(kinds ? (*kinds)[layer] : slides(static_cast<std::int64_t>(layer)))) {
      continue;
    }
    if (!window) {
      refuse_config(config,
                    "sliding_window",
                    concat("layer ", layer, " is of sliding_attention, so expected a number of keys, got none"),
                    "write the window that the model was trained with");
    }
    decoder.layers[layer].window = *window;
  }
}

} // namespace tieshard
