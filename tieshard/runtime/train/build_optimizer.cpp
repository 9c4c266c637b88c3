#include "tieshard/runtime/train/build_optimizer.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/fused_sgd.h"
#include "tieshard/runtime/optim/lion.h"
#include "tieshard/runtime/optim/param_groups.h"

namespace tieshard {
namespace {

std::unique_ptr<torch::optim::Optimizer> build(const TrainConfig& config,
                                               const std::vector<ParamGroup>& groups,
                                               const Bf16Options& bf16) {
  switch (config.optimizer) {
    case OptimizerKind::kAdamW:
      return build_with_groups<FusedAdamW>(groups,
                                           torch::optim::AdamWOptions(config.lr)
                                               .betas({config.beta1, config.beta2.value_or(0.999)})
                                               .eps(config.eps)
                                               .weight_decay(config.weight_decay.value_or(0.01)),
                                           bf16);
    case OptimizerKind::kSgd:
      return build_with_groups<FusedSgd>(groups,
                                         torch::optim::SGDOptions(config.lr)
                                             .momentum(config.momentum)
                                             .nesterov(config.nesterov)
                                             .weight_decay(config.weight_decay.value_or(0)),
                                         bf16);
    case OptimizerKind::kLion:
      return build_with_groups<Lion>(groups,
                                     LionOptions(config.lr)
                                         .betas({config.beta1, config.beta2.value_or(0.99)})
                                         .weight_decay(config.weight_decay.value_or(0)),
                                     bf16);
  }
  return nullptr;
}

/// A rule for bfloat16 shards wants some that are trained: those of an adapter are float32.
void require_bf16_trained(const TrainConfig& config, const std::vector<ParamGroup>& groups) {
  const bool trained = std::ranges::any_of(groups, [](const ParamGroup& group) {
    return std::ranges::any_of(group.parameters,
                               [](const at::Tensor& parameter) { return parameter.scalar_type() == at::kBFloat16; });
  });
  if (config.bf16_update != Bf16Update::kNearest && !trained) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has nothing to act on",
                      .where = "--bf16-update",
                      .why = config.adapter
                                 ? "expected parameters in bfloat16 that are trained, got an adapter in float32"
                                 : "expected parameters in bfloat16 that are trained, got none",
                      .fix = "leave --bf16-update out"});
  }
}

} // namespace

std::string optimizer_name(OptimizerKind kind) {
  return kind == OptimizerKind::kLion ? "lion" : kind == OptimizerKind::kSgd ? "sgd" : "adamw";
}

GuardedOptimizer<torch::optim::Optimizer> build_optimizer(const TrainConfig& config, const ParallelModel& parallel) {
  const OptimizerGuard guard(parallel.state);
  const std::vector<ParamGroup> groups = make_param_groups(guard, parallel.state->root(), config.param_groups);
  require_bf16_trained(config, groups);
  return guard.adopt(
      build(config,
            groups,
            {.update = config.bf16_update, .seed = config.seed, .placements = element_placements(*parallel.state)}));
}

LrSchedule lr_schedule_of(const TrainConfig& config, std::int64_t ranks) {
  LrScheduleOptions options = config.schedule;
  options.total = config.schedule_by_tokens ? config.steps * config.tokens_of_step(ranks) : config.steps;
  return LrSchedule(options);
}

} // namespace tieshard
