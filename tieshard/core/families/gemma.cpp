#include "tieshard/core/families/gemma.h"

#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/gated_decoder.h"

namespace tieshard {
namespace {

GatedDecoderSizes sizes_of(const HfConfig& config) {
  const std::int64_t heads = positive(config, "num_attention_heads");
  const std::int64_t key_value_heads = positive_or(config, "num_key_value_heads", 16);
  const std::int64_t head_dim = positive_or(config, "head_dim", 256); // not hidden_size / heads: 2b and 7b differ there
  require_multiple(config, "num_attention_heads", heads, "num_key_value_heads", key_value_heads);
  const std::int64_t layers = positive(config, "num_hidden_layers");
  require_layer_count(config, "num_hidden_layers", layers);
  return {.vocab = positive(config, "vocab_size"),
          .hidden = positive(config, "hidden_size"),
          .layers = layers,
          .query = product(config, "head_dim", heads, head_dim),
          .key_value = product(config, "head_dim", key_value_heads, head_dim),
          .intermediate = config.integer("intermediate_size"),
          .attention_bias = config.boolean_or("attention_bias", false),
          .mlp_bias = false};
}

class GemmaFamily final : public Family {
 public:
  std::string_view name() const override {
    return "gemma";
  }

  bool matches(const HfConfig& config) const override {
    return is_model_class(config, "gemma", {"GemmaForCausalLM"});
  }

  ParameterTable table(const HfConfig& config) const override {
    return gated_decoder_table(config, sizes_of(config));
  }

  std::vector<FamilyTie> ties(const HfConfig&) const override {
    return {{.canonical = "model.embed_tokens.weight", .alias = "lm_head.weight"}};
  }

  bool tied_by_default() const override {
    return true;
  }

  bool is_known_buffer(std::string_view name) const override {
    return is_rotary_buffer(name);
  }

  std::vector<UnitSpec> units(const HfConfig& config) const override {
    std::vector<UnitSpec> units;
    append_layer_units(units, kDecoderStack, sizes_of(config).layers);
    return units;
  }
};

} // namespace

const Family& gemma_family() {
  static const GemmaFamily family;
  return family;
}

} // namespace tieshard
