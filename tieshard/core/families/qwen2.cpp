// Qwen 2 and 2.5: Llama with biases on queries, keys and values.
// Source: transformers Qwen2Config and Qwen2ForCausalLM (5.24).

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_qwen2(const HfConfig& config) {
  DecoderConfig decoder = read_decoder(config, {.num_key_value_heads = 32, .max_position_embeddings = 32'768});
  decoder.query_key_value_bias = true;
  const auto window = sliding_window_if_used(config);
  const std::int64_t first = config.integer_or("max_window_layers", 28);
  set_windows_by_layer(config, decoder, window, [&](std::int64_t layer) { return window && layer >= first; });
  decoder.ropes = {read_rotary(config, decoder)};
  return decoder;
}

} // namespace

const Family& qwen2_family() {
  static const DecoderFamily family(
      {.name = "qwen2", .model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .decoder = read_qwen2});
  return family;
}

} // namespace tieshard
