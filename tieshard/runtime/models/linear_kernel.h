// tieshard/runtime/models/linear_kernel.h
//
// x W^T and its gradients on the fastest kernel at hand. On a CPU, float32 goes to oneDNN, which uses AVX-512 on every
// processor that has it; torch's own linear goes to MKL, which on some processors does not: less than half the speed
// there (docs/benchmarks.md). Both compute in float32; sums are in another order.
//
// Flow:   models/layers.h, linear_cross_entropy.h -> [this] -> ATen
// Source: torch's mkldnn::_linear_pointwise, the operator that torch.compile uses for linear layers on a CPU.

#pragma once

#include <ATen/core/Tensor.h>

namespace tieshard {

/// a [M, K] times b^T, b [N, K] -> [M, N], without autograd. Either may be transposed in memory; same dtype and device.
at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b);

/// x [..., in] W^T (+ b) -> [..., out] as at::linear, with gradients. `bias` may be undefined. Where
/// oneDNN computes it, it is differentiated once: @throws UsageError wrong-state from backward(create_graph=true)
at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

} // namespace tieshard
