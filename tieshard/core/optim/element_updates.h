// tieshard/core/optim/element_updates.h
//
// The optimizers' arithmetic, element by element, in one pass over memory: each array is read once and written once.
//
// Flow:   runtime/optim -> [this]
// Source: AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", in the order of torch.optim's fused
//         step. SGD: torch.optim.SGD. Lion: Chen et al., "Symbolic discovery of optimization algorithms".
//
// Everything is computed in float32. No product is fused with a sum and every square root and quotient is rounded
// correctly, so the results have the same bits on every processor, and wherever an element lies in its array.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tieshard {

/// How a float32 value becomes a bfloat16 one at random: up with the probability of how far it is towards the upper
/// neighbour, so that what is rounded off is not lost on average. The random bits of an element hang on both numbers
/// and on nothing else.
struct StochasticRounding {
  std::uint64_t key = 0;   ///< of seed, step and parameter
  std::uint64_t index = 0; ///< of the first element, in the whole parameter
};

/// Float32 arrays of one length.
struct Float32Elements {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* moments[3] = {nullptr, nullptr, nullptr}; ///< those that the update has, in its order
  std::size_t count = 0;
};

/// The same with parameter and gradient in bfloat16.
struct BFloat16Elements {
  std::uint16_t* parameter = nullptr;
  const std::uint16_t* gradient = nullptr;
  float* moments[3] = {nullptr, nullptr, nullptr};
  std::size_t count = 0;
  float* master = nullptr; ///< the parameter in float32, of which `parameter` becomes the rounding; null for none
  std::optional<StochasticRounding> rounding{}; ///< to nearest without; not together with `master`
};

/// Moments: mean, mean of squares; with `amsgrad` the largest mean of squares too.
struct AdamWUpdate {
  float decay = 1; ///< 1 - lr * weight_decay
  float beta1 = 0.9F;
  float one_minus_beta1 = 0.1F;
  float beta2 = 0.999F;
  float one_minus_beta2 = 0.001F;
  float step_size = 0;       ///< lr / (1 - beta1^step)
  float root_correction = 1; ///< sqrt(1 - beta2^step)
  float eps = 1e-8F;
  bool amsgrad = false;
};

/// AdamW as its options say it.
struct AdamWSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
};

/// The update of step `step` (from 1).
AdamWUpdate adamw_update(const AdamWSettings& settings, std::int64_t step);

/// Moments: the momentum buffer; none with momentum 0. Weight decay is added to the gradient, as torch.optim does.
struct SgdUpdate {
  float lr = 0;
  float weight_decay = 0;
  float momentum = 0;
  float taken = 1; ///< of the gradient into the buffer: 1 - dampening, but 1 in a parameter's first step
  bool nesterov = false;
};

/// Moments: the mean.
struct LionUpdate {
  float lr = 0;
  float decay = 1; ///< 1 - lr * weight_decay
  float beta1 = 0.9F;
  float one_minus_beta1 = 0.1F;
  float beta2 = 0.99F;
  float one_minus_beta2 = 0.01F;
};

void update(const AdamWUpdate& rule, const Float32Elements& elements);
void update(const AdamWUpdate& rule, const BFloat16Elements& elements);
void update(const SgdUpdate& rule, const Float32Elements& elements);
void update(const SgdUpdate& rule, const BFloat16Elements& elements);
void update(const LionUpdate& rule, const Float32Elements& elements);
void update(const LionUpdate& rule, const BFloat16Elements& elements);

/// Mixes two numbers into one that looks random: for keys.
std::uint64_t mix(std::uint64_t a, std::uint64_t b);

} // namespace tieshard
