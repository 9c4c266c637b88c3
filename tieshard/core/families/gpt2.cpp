#include "tieshard/core/families/gpt2.h"

#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/table_builder.h"

namespace tieshard {
namespace {

constexpr std::string_view kStack = "transformer.h";

struct Gpt2Sizes {
  std::int64_t vocab = 0;
  std::int64_t positions = 0;
  std::int64_t embed = 0;
  std::int64_t layers = 0;
  std::int64_t inner = 0; ///< width of the MLP
  bool cross_attention = false;
};

/// The size `key`, or the name that other families have for it, which transformers takes as well.
std::int64_t size_of(const HfConfig& config, std::string_view key, std::string_view other_name) {
  return positive(config, !config.has(key) && config.has(other_name) ? other_name : key);
}

Gpt2Sizes sizes_of(const HfConfig& config) {
  Gpt2Sizes sizes;
  sizes.vocab = positive(config, "vocab_size");
  sizes.positions = size_of(config, "n_positions", "max_position_embeddings");
  sizes.embed = size_of(config, "n_embd", "hidden_size");
  sizes.layers = size_of(config, "n_layer", "num_hidden_layers");
  require_layer_count(config, "n_layer", sizes.layers);
  require_multiple(config, "n_embd", sizes.embed, "n_head", size_of(config, "n_head", "num_attention_heads"));
  sizes.inner = positive_or(config, "n_inner", product(config, "n_embd", 4, sizes.embed));
  sizes.cross_attention = config.boolean_or("add_cross_attention", false);
  return sizes;
}

void add_block(TableBuilder& builder, const std::string& block, const Gpt2Sizes& sizes) {
  const std::int64_t embed = sizes.embed;
  builder.layer_norm(block + ".ln_1", embed);
  builder.conv1d(block + ".attn.c_attn", embed, 3 * embed);
  builder.conv1d(block + ".attn.c_proj", embed, embed);
  builder.layer_norm(block + ".ln_2", embed);
  if (sizes.cross_attention) {
    builder.conv1d(block + ".crossattention.c_attn", embed, 2 * embed);
    builder.conv1d(block + ".crossattention.q_attn", embed, embed);
    builder.conv1d(block + ".crossattention.c_proj", embed, embed);
    builder.layer_norm(block + ".ln_cross_attn", embed);
  }
  builder.conv1d(block + ".mlp.c_fc", embed, sizes.inner);
  builder.conv1d(block + ".mlp.c_proj", sizes.inner, embed);
}

class Gpt2Family final : public Family {
 public:
  std::string_view name() const override {
    return "gpt2";
  }

  bool matches(const HfConfig& config) const override {
    return is_model_class(config, "gpt2", {"GPT2LMHeadModel"});
  }

  ParameterTable table(const HfConfig& config) const override {
    const Gpt2Sizes sizes = sizes_of(config);
    TableBuilder builder(config);
    builder.add("transformer.wte.weight", {sizes.vocab, sizes.embed});
    builder.add("transformer.wpe.weight", {sizes.positions, sizes.embed});
    for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
      add_block(builder, layer_name(kStack, layer), sizes);
    }
    builder.layer_norm("transformer.ln_f", sizes.embed);
    builder.add("lm_head.weight", {sizes.vocab, sizes.embed});
    return builder.take();
  }

  std::vector<FamilyTie> ties(const HfConfig&) const override {
    return {{.canonical = "transformer.wte.weight", .alias = "lm_head.weight"}};
  }

  bool tied_by_default() const override {
    return true;
  }

  /// The causal mask and its value.
  bool is_known_buffer(std::string_view name) const override {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name.ends_with(".crossattention.bias") || name.ends_with(".crossattention.masked_bias");
  }

  std::vector<UnitSpec> units(const HfConfig& config) const override {
    std::vector<UnitSpec> units;
    append_layer_units(units, kStack, sizes_of(config).layers);
    return units;
  }
};

} // namespace

const Family& gpt2_family() {
  static const Gpt2Family family;
  return family;
}

} // namespace tieshard
