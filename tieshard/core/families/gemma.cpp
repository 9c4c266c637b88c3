// Gemma, the first: norms of one plus the weight, a scaled embedding, and always the tanh approximation.
// Source: transformers GemmaConfig and GemmaForCausalLM (5.24).

#include <cmath>

#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_gemma(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config,
                                       {.num_key_value_heads = 16,
                                        .head_dim = 256, // not hidden_size / heads: 2b and 7b differ there
                                        .max_position_embeddings = 8192,
                                        .pad_token_id = 0,
                                        .activation = "gelu_pytorch_tanh"});
  if (decoder.activation == GateActivation::kGeluErf) {
    decoder.activation = GateActivation::kGeluTanh; // the first releases say "gelu" and mean the approximation
  }
  decoder.norm_scale = NormScale::kOnePlusWeight;
  decoder.query_key_value_bias = config.boolean_or("attention_bias", false);
  decoder.output_bias = decoder.query_key_value_bias;
  decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.hidden_size));
  refuse_true(config, "use_bidirectional_attention");
  decoder.ropes = {read_rotary(config, decoder)};
  return decoder;
}

} // namespace

const Family& gemma_family() {
  static const DecoderFamily family({.name = "gemma",
                                     .model_type = "gemma",
                                     .architecture = "GemmaForCausalLM",
                                     .tied_by_default = true,
                                     .decoder = read_gemma});
  return family;
}

} // namespace tieshard
