#include "tieshard/runtime/models/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

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

/// The pair of dimensions that turns `rotations` times over the original context.
double yarn_dimension(double rotations, double size, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  return size * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
}

/// Pairs that turn often keep their frequency, those that turn less than once are divided by `factor`; a ramp between.
at::Tensor yarn_frequencies(const at::Tensor& inv_freq, std::int64_t size, const RopeConfig& rope) {
  double low = yarn_dimension(rope.beta_fast, static_cast<double>(size), rope);
  double high = yarn_dimension(rope.beta_slow, static_cast<double>(size), rope);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(size - 1));
  if (low == high) {
    high += 0.001; // else the ramp divides by zero
  }
  const at::Tensor ramp = ((at::arange(size / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  return inv_freq / rope.factor * ramp + inv_freq * (1 - ramp);
}

at::Tensor rope_frequencies(std::int64_t size, const RopeConfig& rope) {
  const at::Tensor exponent = at::arange(0, size, 2, at::kLong).to(at::kFloat) / static_cast<double>(size);
  const at::Tensor inv_freq = 1.0 / at::pow(rope.theta, exponent);
  if (rope.type == "llama3") {
    return llama3_frequencies(inv_freq, rope);
  }
  if (rope.type == "yarn") {
    return yarn_frequencies(inv_freq, size, rope);
  }
  return rope.type == "linear" ? inv_freq / rope.factor : inv_freq;
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// What cos and sin are multiplied by: of yarn, so that attention stays as sharp over the longer context.
double attention_factor(const RopeConfig& rope) {
  if (rope.type != "yarn") {
    return 1.0;
  }
  if (rope.attention_factor) {
    return *rope.attention_factor;
  }
  if (rope.mscale.value_or(0.0) != 0.0 && rope.mscale_all_dim.value_or(0.0) != 0.0) {
    return yarn_scale(rope.factor, *rope.mscale) / yarn_scale(rope.factor, *rope.mscale_all_dim);
  }
  return yarn_scale(rope.factor, 1.0);
}

std::int64_t turning_part(std::int64_t head_dim, const RopeConfig& rope) {
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
}

} // namespace

RotaryEmbeddingImpl::RotaryEmbeddingImpl(std::int64_t head_dim, const RopeConfig& rope)
    : inv_freq(register_buffer("inv_freq", rope_frequencies(turning_part(head_dim, rope), rope))),
      factor_(attention_factor(rope)) {}

RotaryAngles RotaryEmbeddingImpl::forward(const at::Tensor& positions, at::ScalarType dtype) const {
  const at::Tensor half = positions.to(at::kFloat).unsqueeze(-1) * inv_freq;
  at::Tensor angles = at::cat({half, half}, -1);
  if (positions.dim() == 2) {
    angles = angles.unsqueeze(1); // the same for all heads
  }
  return {.cos = (angles.cos() * factor_).to(dtype), .sin = (angles.sin() * factor_).to(dtype)};
}

at::Tensor apply_rotary(const at::Tensor& x_BNTD, const RotaryAngles& angles) {
  const std::int64_t turning = angles.cos.size(-1);
  const std::int64_t half = turning / 2;
  const at::Tensor x = turning == x_BNTD.size(-1) ? x_BNTD : x_BNTD.narrow(-1, 0, turning);
  const at::Tensor first = x.narrow(-1, 0, half);
  const at::Tensor second = x.narrow(-1, half, half);
  const at::Tensor turned = x * angles.cos + at::cat({-second, first}, -1) * angles.sin;
  return turning == x_BNTD.size(-1) ? turned
                                    : at::cat({turned, x_BNTD.narrow(-1, turning, x_BNTD.size(-1) - turning)}, -1);
}

} // namespace tieshard
