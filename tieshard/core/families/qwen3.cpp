// Qwen 3, dense: Llama with norms on queries and keys.
// Source: transformers Qwen3Config and Qwen3ForCausalLM (5.24).

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_qwen3(const HfConfig& config) {
  DecoderConfig decoder =
      read_decoder(config, {.num_key_value_heads = 32, .head_dim = 128, .max_position_embeddings = 32'768});
  decoder.query_key_norms = true;
  decoder.query_key_value_bias = config.boolean_or("attention_bias", false);
  decoder.output_bias = decoder.query_key_value_bias;
  const auto window = sliding_window_if_used(config);
  const std::int64_t first = config.integer_or("max_window_layers", 28);
  set_windows_by_layer(config, decoder, window, [&](std::int64_t layer) { return window && layer >= first; });
  decoder.ropes = {read_rotary(config, decoder)};
  return decoder;
}

} // namespace

const Family& qwen3_family() {
  static const DecoderFamily family(
      {.name = "qwen3", .model_type = "qwen3", .architecture = "Qwen3ForCausalLM", .decoder = read_qwen3});
  return family;
}

} // namespace tieshard
