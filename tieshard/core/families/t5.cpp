#include "tieshard/core/families/t5.h"

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/table_builder.h"

namespace tieshard {
namespace {

struct T5Sizes {
  std::int64_t vocab = 0;
  std::int64_t model = 0;     ///< d_model
  std::int64_t attention = 0; ///< num_heads * d_kv
  std::int64_t heads = 0;
  std::int64_t inner = 0; ///< d_ff
  std::int64_t encoder_layers = 0;
  std::int64_t decoder_layers = 0;
  std::int64_t position_buckets = 0;
  bool gated = false; ///< wi_0 and wi_1 in place of wi: version 1.1
};

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

T5Sizes sizes_of(const HfConfig& config) {
  T5Sizes sizes;
  sizes.vocab = positive(config, "vocab_size");
  sizes.model = positive(config, "d_model");
  sizes.heads = positive(config, "num_heads");
  sizes.attention = product(config, "d_kv", sizes.heads, positive_or(config, "d_kv", 64));
  sizes.inner = positive(config, "d_ff");
  sizes.encoder_layers = positive(config, "num_layers");
  require_layer_count(config, "num_layers", sizes.encoder_layers);
  sizes.decoder_layers = positive_or(config, "num_decoder_layers", sizes.encoder_layers);
  require_layer_count(config, "num_decoder_layers", sizes.decoder_layers);
  sizes.position_buckets = positive_or(config, "relative_attention_num_buckets", 32);
  sizes.gated = is_gated(config);
  return sizes;
}

void add_attention(TableBuilder& builder, const std::string& attention, const T5Sizes& sizes) {
  for (const char* projection : {".q", ".k", ".v"}) {
    builder.linear(attention + projection, sizes.attention, sizes.model, false);
  }
  builder.linear(attention + ".o", sizes.model, sizes.attention, false);
}

void add_feed_forward(TableBuilder& builder, const std::string& layer, const T5Sizes& sizes) {
  const std::string first = layer + ".DenseReluDense.wi";
  if (sizes.gated) {
    builder.linear(first + "_0", sizes.inner, sizes.model, false);
    builder.linear(first + "_1", sizes.inner, sizes.model, false);
  } else {
    builder.linear(first, sizes.inner, sizes.model, false);
  }
  builder.linear(layer + ".DenseReluDense.wo", sizes.model, sizes.inner, false);
  builder.add(layer + ".layer_norm.weight", {sizes.model});
}

/// Encoder or decoder. Its first block has the position biases of all.
void add_stack(TableBuilder& builder, const std::string& stack, bool is_decoder, const T5Sizes& sizes) {
  builder.add(stack + ".embed_tokens.weight", {sizes.vocab, sizes.model});
  const std::int64_t blocks = is_decoder ? sizes.decoder_layers : sizes.encoder_layers;
  for (std::int64_t index = 0; index < blocks; ++index) {
    const std::string layers = layer_name(stack + ".block", index) + ".layer";
    add_attention(builder, layers + ".0.SelfAttention", sizes);
    if (index == 0) {
      builder.add(layers + ".0.SelfAttention.relative_attention_bias.weight", {sizes.position_buckets, sizes.heads});
    }
    builder.add(layers + ".0.layer_norm.weight", {sizes.model});
    if (is_decoder) {
      add_attention(builder, layers + ".1.EncDecAttention", sizes);
      builder.add(layers + ".1.layer_norm.weight", {sizes.model});
    }
    add_feed_forward(builder, layers + (is_decoder ? ".2" : ".1"), sizes);
  }
  builder.add(stack + ".final_layer_norm.weight", {sizes.model});
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
    const T5Sizes sizes = sizes_of(config);
    TableBuilder builder(config);
    builder.add("shared.weight", {sizes.vocab, sizes.model});
    add_stack(builder, "encoder", false, sizes);
    add_stack(builder, "decoder", true, sizes);
    builder.add("lm_head.weight", {sizes.vocab, sizes.model});
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
    const T5Sizes sizes = sizes_of(config);
    std::vector<UnitSpec> units;
    append_layer_units(units, "encoder.block", sizes.encoder_layers);
    append_layer_units(units, "decoder.block", sizes.decoder_layers);
    return units;
  }
};

} // namespace

const Family& t5_family() {
  static const T5Family family;
  return family;
}

} // namespace tieshard
