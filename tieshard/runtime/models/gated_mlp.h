// tieshard/runtime/models/gated_mlp.h
//
// down(activation(gate(x)) * up(x)): the MLP of the decoders since Llama, and one expert of a mixture.
//
// Flow:   models/decoder.h, experts.h -> [this]
// Source: Shazeer, "GLU Variants Improve Transformer"; transformers 5.24 modeling_llama.py, modeling_phi3.py,
//         modeling_mixtral.py (names).

#pragma once

#include <torch/nn/module.h>

#include "tieshard/core/families/decoder_config.h"
#include "tieshard/runtime/models/layers.h"

namespace tieshard {

struct GatedMlpNames {
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

inline constexpr GatedMlpNames kMixtralExpertNames = {.gate = "w1", .up = "w3", .down = "w2"};

class GatedMlpImpl : public torch::nn::Module {
 public:
  /// @param intermediate  of this one: config's own is that of a dense layer
  GatedMlpImpl(const DecoderConfig& config,
               std::int64_t intermediate,
               const at::TensorOptions& options,
               const GatedMlpNames& names = {});

  /// x [..., H] -> [..., H]
  at::Tensor forward(const at::Tensor& x);

 private:
  GateActivation activation_;
  Linear gate_{nullptr}, up_{nullptr}; ///< without a gate, `up_` makes both: rows gate | up
  Linear down_{nullptr};
};
TORCH_MODULE(GatedMlp);

} // namespace tieshard
