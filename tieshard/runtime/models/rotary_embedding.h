// tieshard/runtime/models/rotary_embedding.h
//
// Rotary position embedding: queries and keys are turned by angles that grow with their position.
//
// Flow:   models/decoder.h -> [this]
// Source: Su et al., "RoFormer"; Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models";
//         transformers 5.24 modeling_rope_utils.py (llama3, linear, yarn).
//
// Shape suffixes: B batch, T sequence, N heads, D head_dim, R the part of it that turns.

#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tieshard/core/checkpoint/hf_config.h"

namespace tieshard {

/// Cosines and sines of one set of positions, [T, R] or [B, 1, T, R].
struct RotaryAngles {
  at::Tensor cos, sin;
};

/// Its frequencies are a buffer that no checkpoint stores: computed here, in float32, on the CPU, whatever device the
/// parameters are on.
class RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  RotaryEmbeddingImpl(std::int64_t head_dim, const RopeConfig& rope);

  /// @param positions  int64 [T], or [B, T] where they differ between rows, on the device of `inv_freq`
  RotaryAngles forward(const at::Tensor& positions, at::ScalarType dtype) const;

  at::Tensor inv_freq; ///< float32 [R / 2]

 private:
  double factor_; ///< of cos and sin
};
TORCH_MODULE(RotaryEmbedding);

/// Turns the first R elements of each head of x [B, N, T, D]; pairs are (i, i + R/2).
at::Tensor apply_rotary(const at::Tensor& x_BNTD, const RotaryAngles& angles);

} // namespace tieshard
