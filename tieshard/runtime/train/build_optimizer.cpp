#include "tieshard/runtime/train/build_optimizer.h"

#include <memory>
#include <utility>
#include <vector>

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

} // namespace

std::string optimizer_name(OptimizerKind kind) {
  return kind == OptimizerKind::kLion ? "lion" : kind == OptimizerKind::kSgd ? "sgd" : "adamw";
}

GuardedOptimizer<torch::optim::Optimizer> build_optimizer(const TrainConfig& config, const ParallelModel& parallel) {
  const OptimizerGuard guard(parallel.state);
  const std::vector<ParamGroup> groups = make_param_groups(guard, parallel.state->root(), config.param_groups);
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
