// tieshard/core/plan/plan_choices.h
//
// The choices that a person has for one model on given ranks, each with what it costs: shard dim, precision, what
// happens to a layer after its forward.
//
// Flow: parameter table, ties -> [this] (shard_plan, training_memory, step_traffic) -> cli/plan_compare

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tieshard/core/families/activation_sizes.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/plan/step_traffic.h"
#include "tieshard/core/plan/training_memory.h"

namespace tieshard {

struct PlanChoice {
  ShardDimPolicy policy = ShardDimPolicy::kLast;
  DType param_dtype = DType::kF32;
  DType compute_dtype = DType::kF32;
  bool reshard_after_forward = true;

  friend bool operator==(const PlanChoice&, const PlanChoice&) = default;
};

/// Flags by which two choices differ.
int changes(const PlanChoice& from, const PlanChoice& to);

struct ChoiceCost {
  PlanChoice choice{};
  std::uint64_t state_bytes = 0;       ///< of rank 0, the largest: parameters, gradients, AdamW's moments
  std::optional<std::uint64_t> peak{}; ///< resident at most while training; nothing where no formula says it
  StepTraffic traffic{};
};

/// What all choices have in common.
struct ChoiceModel {
  const ParameterTable* table = nullptr;
  const TieRegistry* ties = nullptr;
  std::int64_t ranks = 1;
  ShardPlanOptions plan{};                ///< its policy is the choice's
  std::optional<ActivationSizes> sizes{}; ///< of the model's forward
  TrainingStep step{};                    ///< its compute dtype and resharding are the choice's
  std::int64_t replicas = 1;
};

/// The cost of one choice. @throws UsageError what ShardPlan::build throws
ChoiceCost cost_of(const ChoiceModel& model, const PlanChoice& choice);

/// Every choice: two shard dims, float32, float32 with bfloat16 compute, bfloat16; freed or kept after the forward.
std::vector<PlanChoice> all_choices();

/// Of all choices the one that changes least from `asked` and whose peak is at most `limit`; of equals the one that
/// exchanges least. Nothing when none does, or peaks are not known. @throws UsageError what ShardPlan::build throws
std::optional<ChoiceCost> smallest_change(const ChoiceModel& model, const PlanChoice& asked, std::uint64_t limit);

/// The fewest ranks, doubled from model.ranks on and at most `most`, with which `asked` needs at most `limit`.
std::optional<std::int64_t> ranks_that_fit(ChoiceModel model,
                                           const PlanChoice& asked,
                                           std::uint64_t limit,
                                           std::int64_t most);

} // namespace tieshard
