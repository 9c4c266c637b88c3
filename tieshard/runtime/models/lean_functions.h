// tieshard/runtime/models/lean_functions.h
//
// Functions of a decoder layer whose backward keeps their inputs only, and computes the rest again: what torch's graph
// of single operations keeps for them is a fifth of a layer's activations.
//
// Flow:   models/layers.h, models/llama.h -> [this] -> ATen
//
// Note: they are differentiated once. backward() with create_graph throws UsageError wrong-state.
//
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization"; Shazeer, "GLU Variants Improve Transformer".

#pragma once

#include <ATen/core/Tensor.h>

namespace tieshard {

/// weight * (x / sqrt(mean(x^2) + eps)), over the last dim: the quotient in float32, rounded to x's dtype, then
/// multiplied in it, as transformers' LlamaRMSNorm. x [..., H], weight [H].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// silu(gate) * up, of one shape.
at::Tensor silu_times(const at::Tensor& gate, const at::Tensor& up);

} // namespace tieshard
