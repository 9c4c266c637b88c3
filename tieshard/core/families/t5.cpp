#include "tieshard/core/families/t5.h"

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/table_builder.h"

namespace tieshard {
namespace {

/// "relu", or "gated-gelu" and others of that kind.
bool is_gated(const HfConfig& config) {
  const std::string kind = config.string_or("feed_forward_proj", "relu");
  const std::size_t dash = kind.find('-');
  const bool gated = kind.starts_with("gated-");
  if (kind.empty() || (dash != std::string::npos && (!gated || kind.find('-', dash + 1) != std::string::npos))) {
    refuse_config(config,
                  "feed_forward_proj",
                  concat("expected an activation, or \"gated-\" and an activation, got \"", kind, "\""),
                  "write relu or gated-gelu, as the weights were trained");
  }
  return gated;
}

T5Activation activation_of(const HfConfig& config, bool gated) {
  const std::string kind = config.string_or("feed_forward_proj", "relu");
  const std::string name = gated ? kind.substr(kind.find('-') + 1) : kind;
  if (name == "relu") {
    return T5Activation::kRelu;
  }
  if (name == "silu" || name == "swish") {
    return T5Activation::kSilu;
  }
  if (name == "gelu_new" || (name == "gelu" && gated)) { // transformers takes "gated-gelu" for the tanh approximation
    return T5Activation::kGeluTanh;
  }
  if (name == "gelu") {
    return T5Activation::kGeluErf;
  }
  refuse_config(config,
                "feed_forward_proj",
                concat("supported: relu, gelu, gelu_new, silu, also with \"gated-\" before them; got \"", kind, "\""),
                "write relu or gated-gelu, as the weights were trained");
}

/// Of version 1.1, whose files have a head of their own and the tie flag off. transformers 5 writes the flag as on for
/// these too, and this field beside it.
bool scales_head(const HfConfig& config) {
  const bool tied = !config.tie_word_embeddings() || config.tie_word_embeddings()->value;
  return config.boolean_or("scale_decoder_outputs", tied);
}

void add_attention(TableBuilder& builder, const std::string& attention, const T5Config& sizes) {
  const std::int64_t heads = sizes.heads * sizes.head_size;
  for (const char* projection : {".q", ".k", ".v"}) {
    builder.linear(attention + projection, heads, sizes.model_size, false);
  }
  builder.linear(attention + ".o", sizes.model_size, heads, false);
}

void add_feed_forward(TableBuilder& builder, const std::string& layer, const T5Config& sizes) {
  const std::string first = layer + ".DenseReluDense.wi";
  if (sizes.gated) {
    builder.linear(first + "_0", sizes.inner_size, sizes.model_size, false);
    builder.linear(first + "_1", sizes.inner_size, sizes.model_size, false);
  } else {
    builder.linear(first, sizes.inner_size, sizes.model_size, false);
  }
  builder.linear(layer + ".DenseReluDense.wo", sizes.model_size, sizes.inner_size, false);
  builder.add(layer + ".layer_norm.weight", {sizes.model_size});
}

/// Encoder or decoder. Its first block has the position biases of all.
void add_stack(TableBuilder& builder, const std::string& stack, bool is_decoder, const T5Config& sizes) {
  builder.add(stack + ".embed_tokens.weight", {sizes.vocab_size, sizes.model_size});
  const std::int64_t blocks = is_decoder ? sizes.decoder_layers : sizes.encoder_layers;
  for (std::int64_t index = 0; index < blocks; ++index) {
    const std::string layers = layer_name(stack + ".block", index) + ".layer";
    add_attention(builder, layers + ".0.SelfAttention", sizes);
    if (index == 0) {
      builder.add(layers + ".0.SelfAttention.relative_attention_bias.weight", {sizes.position_buckets, sizes.heads});
    }
    builder.add(layers + ".0.layer_norm.weight", {sizes.model_size});
    if (is_decoder) {
      add_attention(builder, layers + ".1.EncDecAttention", sizes);
      builder.add(layers + ".1.layer_norm.weight", {sizes.model_size});
    }
    add_feed_forward(builder, layers + (is_decoder ? ".2" : ".1"), sizes);
  }
  builder.add(stack + ".final_layer_norm.weight", {sizes.model_size});
}

class T5Family final : public Family {
 public:
  std::string_view name() const override {
    return "t5";
  }

  bool matches(const HfConfig& config) const override {
    return is_model_class(config, "t5", {"T5ForConditionalGeneration", "T5WithLMHeadModel"}); // the second: before 3.0
  }

  ParameterTable table(const HfConfig& config) const override {
    const T5Config sizes = T5Config::from(config);
    TableBuilder builder(config);
    builder.add("shared.weight", {sizes.vocab_size, sizes.model_size});
    add_stack(builder, "encoder", false, sizes);
    add_stack(builder, "decoder", true, sizes);
    builder.add("lm_head.weight", {sizes.vocab_size, sizes.model_size});
    return builder.take();
  }

  /// The flag is about the head alone: version 1.1 has one of its own.
  std::vector<FamilyTie> ties(const HfConfig&) const override {
    return {{.canonical = "shared.weight", .alias = "encoder.embed_tokens.weight", .always = true},
            {.canonical = "shared.weight", .alias = "decoder.embed_tokens.weight", .always = true},
            {.canonical = "shared.weight", .alias = "lm_head.weight"}};
  }

  bool tied_by_default() const override {
    return true;
  }

  /// The first files hold a position bias of the cross-attention, which has none.
  bool is_known_buffer(std::string_view name) const override {
    return name.ends_with("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight");
  }

  std::vector<UnitSpec> units(const HfConfig& config) const override {
    const T5Config sizes = T5Config::from(config);
    std::vector<UnitSpec> units;
    append_layer_units(units, "encoder.block", sizes.encoder_layers);
    append_layer_units(units, "decoder.block", sizes.decoder_layers);
    return units;
  }
};

} // namespace

T5Config T5Config::from(const HfConfig& config) {
  T5Config t5;
  t5.vocab_size = positive(config, "vocab_size");
  t5.model_size = positive(config, "d_model");
  t5.heads = positive(config, "num_heads");
  t5.head_size = positive_or(config, "d_kv", t5.head_size);
  product(config, "d_kv", t5.heads, t5.head_size); // refuses an overflow
  t5.inner_size = positive(config, "d_ff");
  t5.encoder_layers = positive(config, "num_layers");
  require_layer_count(config, "num_layers", t5.encoder_layers);
  t5.decoder_layers = positive_or(config, "num_decoder_layers", t5.encoder_layers);
  require_layer_count(config, "num_decoder_layers", t5.decoder_layers);
  t5.position_buckets = positive_or(config, "relative_attention_num_buckets", t5.position_buckets);
  t5.position_distance = positive_or(config, "relative_attention_max_distance", t5.position_distance);
  if (t5.position_buckets < 4 || t5.position_distance <= t5.position_buckets / 2) {
    refuse_config(config,
                  "relative_attention_num_buckets",
                  concat("expected at least 4, and relative_attention_max_distance above half of it, got ",
                         t5.position_buckets,
                         " and ",
                         t5.position_distance),
                  "write both as the weights were trained, mostly 32 and 128");
  }
  t5.layer_norm_epsilon = config.number_or("layer_norm_epsilon", t5.layer_norm_epsilon);
  t5.dropout = config.number_or("dropout_rate", t5.dropout);
  t5.gated = is_gated(config);
  t5.activation = activation_of(config, t5.gated);
  t5.scale_head = scales_head(config);
  t5.pad_token_id = config.integer_or("pad_token_id", 0);
  t5.decoder_start_id = config.integer_or("decoder_start_token_id", t5.pad_token_id);
  return t5;
}

const Family& t5_family() {
  static const T5Family family;
  return family;
}

} // namespace tieshard
