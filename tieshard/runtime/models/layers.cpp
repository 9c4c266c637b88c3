#include "tieshard/runtime/models/layers.h"

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "tieshard/runtime/models/lean_functions.h"
#include "tieshard/runtime/models/linear_kernel.h"

namespace tieshard {
namespace {

/// Wavelengths above `original / low` are divided by `factor`, those below `original / high` kept, the rest blended.
at::Tensor llama3_frequencies(const at::Tensor& inv_freq, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const at::Tensor wavelength = 2 * std::numbers::pi / inv_freq;
  const at::Tensor smooth =
      (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor scaled = inv_freq / rope.factor;
  const at::Tensor blended = (1 - smooth) * scaled + smooth * inv_freq;
  const at::Tensor low = wavelength > original / rope.low_freq_factor;
  const at::Tensor high = wavelength < original / rope.high_freq_factor;
  return at::where(low, scaled, at::where(high, inv_freq, blended));
}

at::Tensor rope_frequencies(std::int64_t head_dim, const RopeConfig& rope) {
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor inv_freq = 1.0 / at::pow(rope.theta, exponent);
  if (rope.type == "llama3") {
    return llama3_frequencies(inv_freq, rope);
  }
  return rope.type == "linear" ? inv_freq / rope.factor : inv_freq;
}

} // namespace

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool with_bias, const at::TensorOptions& options)
    : in_(in), out_(out) {
  weight = register_parameter("weight", at::empty({out, in}, options));
  if (with_bias) {
    bias = register_parameter("bias", at::empty({out}, options));
  }
}

LinearImpl::LinearImpl(const at::Tensor& tied)
    : weight(register_parameter("weight", tied)), in_(tied.size(1)), out_(tied.size(0)) {}

at::Tensor LinearImpl::forward(const at::Tensor& x) const {
  const at::Tensor y = apply_linear(x, weight, bias);
  return update ? update->add_to(y, x, is_training()) : y;
}

EmbeddingImpl::EmbeddingImpl(std::int64_t count,
                             std::int64_t size,
                             std::optional<std::int64_t> padding_idx,
                             const at::TensorOptions& options,
                             bool shared)
    : weight(register_parameter("weight", at::empty({count, size}, options))),
      count_(count),
      size_(size),
      padding_idx_(padding_idx.value_or(-1)) {
  if (shared) {
    shared_.emplace(weight);
  }
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) const {
  const at::Tensor y = shared_ ? shared_->lookup(weight, ids, padding_idx_) : at::embedding(weight, ids, padding_idx_);
  return update ? update->add_to_rows(y, ids, padding_idx_) : y;
}

RmsNormImpl::RmsNormImpl(std::int64_t size, double eps, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({size}, options))), eps_(eps) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) const {
  return rms_norm(x, weight, eps_);
}

RotaryEmbeddingImpl::RotaryEmbeddingImpl(std::int64_t head_dim, const RopeConfig& rope)
    : inv_freq(register_buffer("inv_freq", rope_frequencies(head_dim, rope))) {}

std::pair<at::Tensor, at::Tensor> RotaryEmbeddingImpl::forward(std::int64_t length, at::ScalarType dtype) const {
  const at::Tensor half = at::outer(at::arange(length, inv_freq.options()), inv_freq);
  const at::Tensor angles_TD = at::cat({half, half}, -1);
  return {angles_TD.cos().to(dtype), angles_TD.sin().to(dtype)};
}

at::Tensor apply_rotary(const at::Tensor& x_BNTD, const at::Tensor& cos_TD, const at::Tensor& sin_TD) {
  const std::int64_t half = x_BNTD.size(-1) / 2;
  const at::Tensor first = x_BNTD.narrow(-1, 0, half);
  const at::Tensor second = x_BNTD.narrow(-1, half, half);
  return x_BNTD * cos_TD + at::cat({-second, first}, -1) * sin_TD;
}

} // namespace tieshard
