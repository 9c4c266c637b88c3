#include "tieshard/core/families/decoder_table.h"

#include <array>
#include <string>

#include "tieshard/core/families/table_builder.h"

namespace tieshard {
namespace {

struct AttentionSizes {
  std::int64_t query = 0;     ///< query heads times head size
  std::int64_t key_value = 0; ///< key/value heads times head size
};

void add_projections(TableBuilder& builder, const std::string& attention, const DecoderConfig& decoder) {
  const AttentionSizes sizes{.query = decoder.num_attention_heads * decoder.head_dim,
                             .key_value = decoder.num_key_value_heads * decoder.head_dim};
  const std::int64_t hidden = decoder.hidden_size;
  const bool bias = decoder.query_key_value_bias;
  if (decoder.projections == ProjectionLayout::kFused) {
    builder.linear(attention + "o_proj", hidden, sizes.query, decoder.output_bias);
    builder.linear(attention + "qkv_proj", sizes.query + 2 * sizes.key_value, hidden, bias);
    return;
  }
  builder.linear(attention + "q_proj", sizes.query, hidden, bias);
  builder.linear(attention + "k_proj", sizes.key_value, hidden, bias);
  builder.linear(attention + "v_proj", sizes.key_value, hidden, bias);
  builder.linear(attention + "o_proj", hidden, sizes.query, decoder.output_bias);
}

void add_attention(TableBuilder& builder, const std::string& attention, const DecoderConfig& decoder) {
  if (decoder.sinks) {
    builder.add(attention + "sinks", {decoder.num_attention_heads});
  }
  add_projections(builder, attention, decoder);
  if (decoder.query_key_norms) {
    builder.add(attention + "q_norm.weight", {decoder.head_dim});
    builder.add(attention + "k_norm.weight", {decoder.head_dim});
  }
}

void add_mlp(TableBuilder& builder, const std::string& mlp, const DecoderConfig& decoder) {
  const std::int64_t hidden = decoder.hidden_size;
  const std::int64_t inner = decoder.intermediate_size;
  if (decoder.projections == ProjectionLayout::kFused) {
    builder.linear(mlp + "gate_up_proj", 2 * inner, hidden, decoder.mlp_bias);
  } else {
    builder.linear(mlp + "gate_proj", inner, hidden, decoder.mlp_bias);
    builder.linear(mlp + "up_proj", inner, hidden, decoder.mlp_bias);
  }
  builder.linear(mlp + "down_proj", hidden, inner, decoder.mlp_bias);
}

/// One tensor for all experts, used as x @ W: [experts, in, out].
void add_stacked_experts(TableBuilder& builder,
                         const std::string& layer,
                         std::int64_t hidden,
                         const ExpertsConfig& of) {
  builder.linear(layer + "mlp.router", of.count, hidden, true);
  const std::string experts = layer + "mlp.experts.";
  builder.add(experts + "gate_up_proj", {of.count, hidden, 2 * of.intermediate_size});
  builder.add(experts + "gate_up_proj_bias", {of.count, 2 * of.intermediate_size});
  builder.add(experts + "down_proj", {of.count, of.intermediate_size, hidden});
  builder.add(experts + "down_proj_bias", {of.count, hidden});
}

/// One module for each expert, with a gate, an up and a down projection under these names.
void add_single_experts(TableBuilder& builder,
                        const std::string& block,
                        const std::array<const char*, 3>& names,
                        std::int64_t hidden,
                        const ExpertsConfig& of) {
  builder.linear(block + "gate", of.count, hidden, false);
  for (std::int64_t index = 0; index < of.count; ++index) {
    const std::string expert = layer_name(block + "experts", index) + ".";
    builder.linear(expert + names[0], of.intermediate_size, hidden, false);
    builder.linear(expert + names[1], of.intermediate_size, hidden, false);
    builder.linear(expert + names[2], hidden, of.intermediate_size, false);
  }
}

/// What every token goes through beside the experts that it chooses, and its gate. @param inner  0 where there is none
void add_shared_expert(TableBuilder& builder, const std::string& mlp, std::int64_t hidden, std::int64_t inner) {
  if (inner == 0) {
    return;
  }
  builder.linear(mlp + "shared_expert.gate_proj", inner, hidden, false);
  builder.linear(mlp + "shared_expert.up_proj", inner, hidden, false);
  builder.linear(mlp + "shared_expert.down_proj", hidden, inner, false);
  builder.linear(mlp + "shared_expert_gate", 1, hidden, false);
}

void add_experts(TableBuilder& builder, const std::string& layer, std::int64_t hidden, const ExpertsConfig& experts) {
  switch (experts.layout) {
    case ExpertLayout::kMlpExperts:
      add_single_experts(builder, layer + "mlp.", {"gate_proj", "up_proj", "down_proj"}, hidden, experts);
      add_shared_expert(builder, layer + "mlp.", hidden, experts.shared_intermediate_size);
      break;
    case ExpertLayout::kBlockSparseMoe:
      add_single_experts(builder, layer + "block_sparse_moe.", {"w1", "w3", "w2"}, hidden, experts);
      break;
    case ExpertLayout::kStackedInterleaved:
      add_stacked_experts(builder, layer, hidden, experts);
      break;
  }
}

void add_norms(TableBuilder& builder, const std::string& layer, const DecoderConfig& decoder) {
  builder.add(layer + "input_layernorm.weight", {decoder.hidden_size});
  builder.add(layer + "post_attention_layernorm.weight", {decoder.hidden_size});
  if (decoder.branch_norms) {
    builder.add(layer + "pre_feedforward_layernorm.weight", {decoder.hidden_size});
    builder.add(layer + "post_feedforward_layernorm.weight", {decoder.hidden_size});
  }
}

} // namespace

ParameterTable decoder_table(const HfConfig& config, const DecoderConfig& decoder) {
  TableBuilder builder(config);
  builder.add("model.embed_tokens.weight", {decoder.vocab_size, decoder.hidden_size});
  for (std::size_t index = 0; index < decoder.layers.size(); ++index) {
    const std::string layer = layer_name(kDecoderStack, static_cast<std::int64_t>(index)) + ".";
    add_attention(builder, layer + "self_attn.", decoder);
    if (decoder.layers[index].experts) {
      add_experts(builder, layer, decoder.hidden_size, decoder.experts.value());
    } else {
      add_mlp(builder, layer + "mlp.", decoder);
    }
    add_norms(builder, layer, decoder);
  }
  builder.add("model.norm.weight", {decoder.hidden_size});
  builder.add("lm_head.weight", {decoder.vocab_size, decoder.hidden_size});
  return builder.take();
}

bool is_rotary_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

} // namespace tieshard
