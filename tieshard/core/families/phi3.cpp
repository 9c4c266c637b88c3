// Phi-3 and Phi-4-mini without long contexts: fused projections, and a rotation of a part of each head.
// Source: transformers Phi3Config and Phi3ForCausalLM (5.24).

#include "tieshard/core/families/attention_windows.h"
#include "tieshard/core/families/decoder_family.h"
#include "tieshard/core/families/decoder_fields.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

DecoderConfig read_phi3(const HfConfig& config) {
  DecoderConfig decoder =
      read_decoder(config, {.max_position_embeddings = 4096, .rms_norm_eps = 1e-5, .pad_token_id = 32'000});
  decoder.projections = ProjectionLayout::kFused;
  set_one_window(config, decoder, sliding_window(config, std::nullopt));
  refuse_other_number(config, "resid_pdrop", 0.0);
  refuse_other_number(config, "embd_pdrop", 0.0);
  decoder.ropes = {read_rotary(config, decoder, {.only_default = true, .may_be_partial = true})};
  return decoder;
}

} // namespace

const Family& phi3_family() {
  static const DecoderFamily family(
      {.name = "phi3", .model_type = "phi3", .architecture = "Phi3ForCausalLM", .decoder = read_phi3});
  return family;
}

} // namespace tieshard
