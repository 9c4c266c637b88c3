#include "tieshard/core/families/gpt_oss.h"

#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/gated_decoder.h"

namespace tieshard {
namespace {

struct GptOssSizes {
  GatedDecoderSizes decoder;
  std::int64_t heads = 0;
  std::int64_t experts = 0;
};

GptOssSizes sizes_of(const HfConfig& config) {
  GptOssSizes sizes;
  sizes.heads = positive(config, "num_attention_heads");
  const std::int64_t key_value_heads = positive_or(config, "num_key_value_heads", 8);
  require_multiple(config, "num_attention_heads", sizes.heads, "num_key_value_heads", key_value_heads);
  const std::int64_t head_dim = positive_or(config, "head_dim", 64);
  const std::int64_t layers = positive(config, "num_hidden_layers");
  require_layer_count(config, "num_hidden_layers", layers);
  sizes.experts = positive(config, config.has("num_local_experts") ? "num_local_experts" : "num_experts");
  sizes.decoder = {.vocab = positive(config, "vocab_size"),
                   .hidden = positive(config, "hidden_size"),
                   .layers = layers,
                   .query = product(config, "head_dim", sizes.heads, head_dim),
                   .key_value = product(config, "head_dim", key_value_heads, head_dim),
                   .intermediate = positive(config, "intermediate_size"),
                   .attention_bias = config.boolean_or("attention_bias", true),
                   .mlp_bias = true};
  return sizes;
}

/// Experts are one tensor for all of them, used as x @ W: [experts, in, out].
void add_experts(TableBuilder& builder, const std::string& mlp, const GptOssSizes& sizes) {
  const std::int64_t experts = sizes.experts;
  const std::int64_t hidden = sizes.decoder.hidden;
  const std::int64_t inner = sizes.decoder.intermediate;
  builder.linear(mlp + ".router", experts, hidden, true);
  builder.add(mlp + ".experts.gate_up_proj", {experts, hidden, 2 * inner});
  builder.add(mlp + ".experts.gate_up_proj_bias", {experts, 2 * inner});
  builder.add(mlp + ".experts.down_proj", {experts, inner, hidden});
  builder.add(mlp + ".experts.down_proj_bias", {experts, hidden});
}

class GptOssFamily final : public Family {
 public:
  std::string_view name() const override {
    return "gpt_oss";
  }

  bool matches(const HfConfig& config) const override {
    return is_model_class(config, "gpt_oss", {"GptOssForCausalLM"});
  }

  ParameterTable table(const HfConfig& config) const override {
    const GptOssSizes sizes = sizes_of(config);
    const GatedDecoderSizes& decoder = sizes.decoder;
    TableBuilder builder(config);
    builder.add("model.embed_tokens.weight", {decoder.vocab, decoder.hidden});
    for (std::int64_t index = 0; index < decoder.layers; ++index) {
      const std::string layer = layer_name(kDecoderStack, index);
      builder.add(layer + ".self_attn.sinks", {sizes.heads});
      add_attention_projections(builder, layer, decoder);
      add_experts(builder, layer + ".mlp", sizes);
      builder.add(layer + ".input_layernorm.weight", {decoder.hidden});
      builder.add(layer + ".post_attention_layernorm.weight", {decoder.hidden});
    }
    builder.add("model.norm.weight", {decoder.hidden});
    builder.add("lm_head.weight", {decoder.vocab, decoder.hidden});
    return builder.take();
  }

  std::vector<FamilyTie> ties(const HfConfig&) const override {
    return {{.canonical = "model.embed_tokens.weight", .alias = "lm_head.weight"}};
  }

  bool tied_by_default() const override {
    return false;
  }

  std::vector<UnitSpec> units(const HfConfig& config) const override {
    std::vector<UnitSpec> units;
    append_layer_units(units, kDecoderStack, sizes_of(config).decoder.layers);
    return units;
  }
};

} // namespace

const Family& gpt_oss_family() {
  static const GptOssFamily family;
  return family;
}

} // namespace tieshard
