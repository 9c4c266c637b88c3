#include "tieshard/cli/decoder_text.h"

#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

const char* text(NormScale scale) {
  switch (scale) {
    case NormScale::kWeight:
      return "weight";
    case NormScale::kWeightInFloat32:
      return "weight_in_float32";
    case NormScale::kOnePlusWeight:
      return "one_plus_weight";
  }
  return "";
}

template <typename T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

const char* text(GateActivation activation) {
  switch (activation) {
    case GateActivation::kSilu:
      return "silu";
    case GateActivation::kGeluTanh:
      return "gelu_tanh";
    case GateActivation::kGeluErf:
      return "gelu_erf";
  }
  return "";
}

const char* text(ExpertLayout layout) {
  switch (layout) {
    case ExpertLayout::kMlpExperts:
      return "mlp_experts";
    case ExpertLayout::kBlockSparseMoe:
      return "block_sparse_moe";
    case ExpertLayout::kStackedInterleaved:
      return "stacked_interleaved";
  }
  return "";
}

OrderedJson to_json(const RopeConfig& rope) {
  return {{"type", rope.type},
          {"theta", rope.theta},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_max_position_embeddings},
          {"partial_rotary_factor", rope.partial_rotary_factor},
          {"beta_fast", rope.beta_fast},
          {"beta_slow", rope.beta_slow},
          {"truncate", rope.truncate},
          {"attention_factor", or_null(rope.attention_factor)},
          {"mscale", or_null(rope.mscale)},
          {"mscale_all_dim", or_null(rope.mscale_all_dim)}};
}

OrderedJson to_json(const ExpertsConfig& experts) {
  return {{"count", experts.count},
          {"chosen", experts.chosen},
          {"intermediate_size", experts.intermediate_size},
          {"shared_intermediate_size", experts.shared_intermediate_size},
          {"layout", text(experts.layout)},
          {"renormalise", experts.renormalise},
          {"swiglu_limit", experts.swiglu_limit}};
}

} // namespace

OrderedJson to_json(const DecoderConfig& decoder) {
  OrderedJson ropes = OrderedJson::array();
  for (const RopeConfig& rope : decoder.ropes) {
    ropes.push_back(to_json(rope));
  }
  OrderedJson layers = OrderedJson::array();
  for (const DecoderLayerConfig& layer : decoder.layers) {
    layers.push_back({{"window", layer.window}, {"rope", layer.rope}, {"experts", layer.experts}});
  }
  return {{"vocab_size", decoder.vocab_size},
          {"hidden_size", decoder.hidden_size},
          {"intermediate_size", decoder.intermediate_size},
          {"num_attention_heads", decoder.num_attention_heads},
          {"num_key_value_heads", decoder.num_key_value_heads},
          {"head_dim", decoder.head_dim},
          {"max_position_embeddings", decoder.max_position_embeddings},
          {"pad_token_id", or_null(decoder.pad_token_id)},
          {"rms_norm_eps", decoder.rms_norm_eps},
          {"norm_scale", text(decoder.norm_scale)},
          {"branch_norms", decoder.branch_norms},
          {"query_key_norms", decoder.query_key_norms},
          {"projections", decoder.projections == ProjectionLayout::kSeparate ? "separate" : "fused"},
          {"query_key_value_bias", decoder.query_key_value_bias},
          {"output_bias", decoder.output_bias},
          {"mlp_bias", decoder.mlp_bias},
          {"activation", text(decoder.activation)},
          {"attention_scale", decoder.attention_scale},
          {"attention_dropout", decoder.attention_dropout},
          {"attention_softcap", decoder.attention_softcap},
          {"sinks", decoder.sinks},
          {"logits_softcap", decoder.logits_softcap},
          {"embedding_scale", decoder.embedding_scale},
          {"ropes", ropes},
          {"layers", layers},
          {"experts", decoder.experts ? to_json(*decoder.experts) : OrderedJson()}};
}

} // namespace tieshard::cli
