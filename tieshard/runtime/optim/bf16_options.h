// tieshard/runtime/optim/bf16_options.h
//
// How an optimizer updates parameters in bfloat16, whose 8 bits lose most steps of training when they are rounded to
// nearest.
//
// Flow:   train_config -> [this] -> fused_adamw, fused_sgd, lion
// Source: Micikevicius et al., "Mixed precision training" (master weights); Zamirai et al., "Revisiting BFloat16
//         training" (stochastic rounding).

#pragma once

#include <cstdint>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {

/// Moments are float32 in every case.
enum class Bf16Update {
  kNearest,            ///< computed in float32, rounded to nearest
  kMasterWeights,      ///< a float32 copy is stepped, 4 bytes a parameter; the parameter is its rounding
  kStochasticRounding, ///< computed in float32, rounded at random: up as likely as the value is near the upper
                       ///< neighbour
};

/// Where the elements of a rank's shard lie in the whole parameter: in runs of `run` neighbours, `stride` elements from
/// one to the next, the first at `offset`.
struct ElementPlacement {
  std::uint64_t key = 0; ///< of the parameter's name
  std::int64_t run = 0;
  std::int64_t stride = 0;
  std::int64_t offset = 0;
};

using ElementPlacements = std::unordered_map<const c10::TensorImpl*, ElementPlacement>;

/// Of every managed parameter, on this rank.
ElementPlacements element_placements(const FsdpState& state);

struct Bf16Options {
  Bf16Update update = Bf16Update::kNearest;
  /// Of stochastic rounding. The random bits of an element hang on the seed, the parameter's name, the number of its
  /// step and the element's place in the whole parameter: every number of ranks rounds alike, and replicas stay equal.
  std::uint64_t seed = 0;
  /// element_placements() of a sharded module. A parameter that is not in it counts as whole, and has the number of its
  /// slot in the optimizer for a name.
  ElementPlacements placements{};
};

} // namespace tieshard
