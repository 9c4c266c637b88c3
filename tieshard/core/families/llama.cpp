// Llama 2 and 3, SmolLM2 and others that use its config.
// Source: transformers LlamaConfig and LlamaForCausalLM (5.24).

#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_llama(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config, {.max_position_embeddings = 2048});
  decoder.query_key_value_bias = config.boolean_or("attention_bias", false);
  decoder.output_bias = decoder.query_key_value_bias;
  decoder.mlp_bias = config.boolean_or("mlp_bias", false);
  decoder.ropes = {read_rotary(config, decoder)};
  return decoder;
}

} // namespace

const Family& llama_family() {
  static const DecoderFamily family(
      {.name = "llama", .model_type = "llama", .architecture = "LlamaForCausalLM", .decoder = read_llama});
  return family;
}

} // namespace tieshard
