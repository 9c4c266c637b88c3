#include "tieshard/core/families/gated_decoder.h"

namespace tieshard {

void add_attention_projections(TableBuilder& builder, const std::string& layer, const GatedDecoderSizes& sizes) {
  const std::string attention = layer + ".self_attn.";
  builder.linear(attention + "q_proj", sizes.query, sizes.hidden, sizes.attention_bias);
  builder.linear(attention + "k_proj", sizes.key_value, sizes.hidden, sizes.attention_bias);
  builder.linear(attention + "v_proj", sizes.key_value, sizes.hidden, sizes.attention_bias);
  builder.linear(attention + "o_proj", sizes.hidden, sizes.query, sizes.attention_bias);
}

ParameterTable gated_decoder_table(const HfConfig& config, const GatedDecoderSizes& sizes) {
  TableBuilder builder(config);
  builder.add("model.embed_tokens.weight", {sizes.vocab, sizes.hidden});
  for (std::int64_t index = 0; index < sizes.layers; ++index) {
    const std::string layer = layer_name(kDecoderStack, index);
    add_attention_projections(builder, layer, sizes);
    builder.linear(layer + ".mlp.gate_proj", sizes.intermediate, sizes.hidden, sizes.mlp_bias);
    builder.linear(layer + ".mlp.up_proj", sizes.intermediate, sizes.hidden, sizes.mlp_bias);
    builder.linear(layer + ".mlp.down_proj", sizes.hidden, sizes.intermediate, sizes.mlp_bias);
    builder.add(layer + ".input_layernorm.weight", {sizes.hidden});
    builder.add(layer + ".post_attention_layernorm.weight", {sizes.hidden});
  }
  builder.add("model.norm.weight", {sizes.hidden});
  builder.add("lm_head.weight", {sizes.vocab, sizes.hidden});
  return builder.take();
}

bool is_rotary_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

} // namespace tieshard
