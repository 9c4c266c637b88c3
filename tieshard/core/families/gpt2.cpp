#include "tieshard/core/families/gpt2.h"

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/table_builder.h"

namespace tieshard {
namespace {

constexpr std::string_view kStack = "transformer.h";

/// The size `key`, or the name that other families have for it, which transformers takes as well.
std::int64_t size_of(const HfConfig& config, std::string_view key, std::string_view other_name) {
  return positive(config, !config.has(key) && config.has(other_name) ? other_name : key);
}

/// transformers has three names for the tanh approximation.
bool is_tanh_gelu(const HfConfig& config) {
  const std::string activation = config.string_or("activation_function", "gelu_new");
  const bool tanh = activation == "gelu_new" || activation == "gelu_pytorch_tanh" || activation == "gelu_fast";
  if (!tanh && activation != "gelu") {
    refuse_config(config,
                  "activation_function",
                  concat("supported: gelu_new, gelu; got \"", activation, "\""),
                  "use a checkpoint of this family that was trained with a GELU");
  }
  return tanh;
}

void add_block(TableBuilder& builder, const std::string& block, const Gpt2Config& sizes) {
  const std::int64_t embed = sizes.hidden_size;
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
  builder.conv1d(block + ".mlp.c_fc", embed, sizes.inner_size);
  builder.conv1d(block + ".mlp.c_proj", sizes.inner_size, embed);
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
    const Gpt2Config sizes = Gpt2Config::from(config);
    TableBuilder builder(config);
    builder.add("transformer.wte.weight", {sizes.vocab_size, sizes.hidden_size});
    builder.add("transformer.wpe.weight", {sizes.positions, sizes.hidden_size});
    for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
      add_block(builder, layer_name(kStack, layer), sizes);
    }
    builder.layer_norm("transformer.ln_f", sizes.hidden_size);
    builder.add("lm_head.weight", {sizes.vocab_size, sizes.hidden_size});
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
    append_layer_units(units, kStack, Gpt2Config::from(config).layers);
    return units;
  }
};

} // namespace

Gpt2Config Gpt2Config::from(const HfConfig& config) {
  Gpt2Config gpt2;
  gpt2.vocab_size = positive(config, "vocab_size");
  gpt2.positions = size_of(config, "n_positions", "max_position_embeddings");
  gpt2.hidden_size = size_of(config, "n_embd", "hidden_size");
  gpt2.layers = size_of(config, "n_layer", "num_hidden_layers");
  require_layer_count(config, "n_layer", gpt2.layers);
  gpt2.heads = size_of(config, "n_head", "num_attention_heads");
  require_multiple(config, "n_embd", gpt2.hidden_size, "n_head", gpt2.heads);
  gpt2.inner_size = positive_or(config, "n_inner", product(config, "n_embd", 4, gpt2.hidden_size));
  gpt2.layer_norm_epsilon = config.number_or("layer_norm_epsilon", gpt2.layer_norm_epsilon);
  gpt2.attention_dropout = config.number_or("attn_pdrop", gpt2.attention_dropout);
  gpt2.residual_dropout = config.number_or("resid_pdrop", gpt2.residual_dropout);
  gpt2.embedding_dropout = config.number_or("embd_pdrop", gpt2.embedding_dropout);
  gpt2.scale_attention = config.boolean_or("scale_attn_weights", gpt2.scale_attention);
  gpt2.scale_by_layer = config.boolean_or("scale_attn_by_inverse_layer_idx", gpt2.scale_by_layer);
  gpt2.tanh_gelu = is_tanh_gelu(config);
  gpt2.cross_attention = config.boolean_or("add_cross_attention", gpt2.cross_attention);
  return gpt2;
}

void require_positions(const HfConfig& config, std::int64_t tokens) {
  if (!gpt2_family().matches(config)) {
    return;
  }
  const std::int64_t positions = Gpt2Config::from(config).positions;
  if (tokens > positions) {
    refuse_config(config,
                  "n_positions",
                  concat("the model has an embedding for each of ", positions, " positions, the sequence has ", tokens),
                  "use shorter sequences (--seq), or fewer new tokens");
  }
}

const Family& gpt2_family() {
  static const Gpt2Family family;
  return family;
}

} // namespace tieshard
