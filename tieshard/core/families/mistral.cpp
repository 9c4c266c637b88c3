// Mistral 7B and what shares its config: Llama with a window in all layers.
// Source: transformers MistralConfig and MistralForCausalLM (5.24).

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_mistral(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config, {.num_key_value_heads = 8, .max_position_embeddings = 131'072});
  set_one_window(config, decoder, sliding_window(config, 4096));
  decoder.ropes = {read_rotary(config, decoder)};
  return decoder;
}

} // namespace

const Family& mistral_family() {
  static const DecoderFamily family(
      {.name = "mistral", .model_type = "mistral", .architecture = "MistralForCausalLM", .decoder = read_mistral});
  return family;
}

} // namespace tieshard
