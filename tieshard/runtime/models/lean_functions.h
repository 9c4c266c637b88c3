// tieshard/runtime/models/lean_functions.h
//
// Functions of a decoder layer whose backward keeps their inputs only, and computes the rest again: what torch's graph
// of single operations keeps for them is a fifth of a layer's activations.
//
// Flow:   models/layers.h, decoder.h, experts.h -> [this] -> ATen
//
// Note: they are differentiated once. backward() with create_graph throws UsageError wrong-state.
//
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization"; Shazeer, "GLU Variants Improve Transformer".

#pragma once

#include <ATen/core/Tensor.h>

#include "tieshard/core/families/decoder_config.h"

namespace tieshard {

/// x / sqrt(mean(x^2) + eps) over the last dim, computed in float32, and times the weight as `scale` says: kWeight is
/// transformers' LlamaRMSNorm, kWeightInFloat32 GptOssRMSNorm, kOnePlusWeight GemmaRMSNorm. x [..., H], weight [H].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormScale scale = NormScale::kWeight);

/// activation(gate) * up, of one shape.
at::Tensor activated_times(const at::Tensor& gate, const at::Tensor& up, GateActivation activation);

/// GPT-OSS's gated unit: of x [..., 2I], whose last dim alternates gate g and linear u, with g cut above at `limit` and
/// u on both sides: (u + 1) * g * sigmoid(1.702 g) [..., I].
at::Tensor clamped_swiglu(const at::Tensor& x, double limit);

/// cap * tanh(x / cap).
at::Tensor softcap(const at::Tensor& x, double cap);

} // namespace tieshard
