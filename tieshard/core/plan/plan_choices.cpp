#include "tieshard/core/plan/plan_choices.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace tieshard {

int changes(const PlanChoice& from, const PlanChoice& to) {
  return static_cast<int>(from.policy != to.policy) + static_cast<int>(from.param_dtype != to.param_dtype) +
         static_cast<int>(from.compute_dtype != to.compute_dtype) +
         static_cast<int>(from.reshard_after_forward != to.reshard_after_forward);
}

ChoiceCost cost_of(const ChoiceModel& model, const PlanChoice& choice) {
  ParameterTable table = *model.table;
  for (ParameterInfo& parameter : table) {
    parameter.dtype = choice.param_dtype;
  }
  ShardPlanOptions options = model.plan;
  options.policy = choice.policy;
  const ShardPlan plan = ShardPlan::build(table, *model.ties, model.ranks, options);
  ChoiceCost cost{.choice = choice};
  std::uint64_t elements = 0;
  for (const ShardedParameter& parameter : plan.parameters()) {
    elements += static_cast<std::uint64_t>(numel(plan.local_shape(parameter, 0)));
  }
  const auto width = static_cast<std::uint64_t>(bits(choice.param_dtype)) / 8;
  cost.state_bytes = elements * (2 * width + 2 * std::max<std::uint64_t>(width, 4));
  cost.traffic = step_traffic(plan,
                              {.compute_dtype = choice.compute_dtype,
                               .reshard_after_forward = choice.reshard_after_forward,
                               .replicas = model.replicas});
  if (model.sizes) {
    TrainingStep step = model.step;
    step.compute_dtype = choice.compute_dtype;
    step.reshard_after_forward = choice.reshard_after_forward;
    cost.peak = predict_training_memory(plan, *model.sizes, step).total();
  }
  return cost;
}

std::vector<PlanChoice> all_choices() {
  constexpr std::array<std::pair<DType, DType>, 3> kPrecisions = {
      {{DType::kF32, DType::kF32}, {DType::kF32, DType::kBF16}, {DType::kBF16, DType::kBF16}}};
  std::vector<PlanChoice> choices;
  for (const auto& [param, compute] : kPrecisions) {
    for (const bool reshard : {true, false}) {
      for (const ShardDimPolicy policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
        choices.push_back(
            {.policy = policy, .param_dtype = param, .compute_dtype = compute, .reshard_after_forward = reshard});
      }
    }
  }
  return choices;
}

std::optional<ChoiceCost> smallest_change(const ChoiceModel& model, const PlanChoice& asked, std::uint64_t limit) {
  std::optional<ChoiceCost> best;
  const auto rank = [&](const ChoiceCost& cost) {
    return std::make_tuple(changes(asked, cost.choice), cost.traffic.received());
  };
  for (const PlanChoice& choice : all_choices()) {
    const ChoiceCost cost = cost_of(model, choice);
    if (cost.peak && *cost.peak <= limit && (!best || rank(cost) < rank(*best))) {
      best = cost;
    }
  }
  return best;
}

std::optional<std::int64_t> ranks_that_fit(ChoiceModel model,
                                           const PlanChoice& asked,
                                           std::uint64_t limit,
                                           std::int64_t most) {
  for (; model.ranks <= most; model.ranks *= 2) {
    const ChoiceCost cost = cost_of(model, asked);
    if (cost.peak && *cost.peak <= limit) {
      return model.ranks;
    }
  }
  return std::nullopt;
}

} // namespace tieshard
