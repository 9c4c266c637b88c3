#include "tieshard/core/failures/failure.h"

namespace tieshard {
namespace {

std::optional<Match> not_switched(const LogException& exception) {
  if (exception.type == "KeyError" && says(exception.message, {"parameter", "optimizer", "sharded version"})) {
    return Match{.parameter = parameter_in(exception.message)};
  }
  return std::nullopt;
}

std::optional<Match> empty_list(const LogException& exception) {
  return exception.type == "ValueError" && says(exception.message, {"optimizer got an empty parameter list"})
             ? std::optional(Match{})
             : std::nullopt;
}

std::optional<Match> mixed_tensors(const LogException& exception) {
  return exception.type == "RuntimeError" && says(exception.message, {"got mixed torch.Tensor and DTensor"})
             ? std::optional(Match{.parameter = parameter_in(exception.message)})
             : std::nullopt;
}

std::optional<Match> state_missing(const LogException& exception) {
  const bool missing = says(exception.message, {"Missing key in checkpoint state_dict", "optim"}) ||
                       says(exception.message, {"optim", "not in", "state"});
  const bool through_state = exception.came_through("optim_utils") || exception.came_through("optim_state");
  if (const std::string key = parameter_key(exception); through_state && !key.empty()) {
    return Match{.parameter = key};
  }
  return missing ? std::optional(Match{.parameter = parameter_in(exception.message)}) : std::nullopt;
}

} // namespace

const std::vector<Failure>& failures_of_optimizers() {
  static const std::vector<Failure> failures = {
      {.id = "optimizer-not-switched",
       .phase = Phase::kOptimizer,
       .what = "the optimizer holds a parameter that has no sharded version",
       .cause = "the optimizer was built before the model was sharded, was given a parameter that no fully_shard unit "
                "owns (a stray tensor, an adapter that "
                "was added after the wrap), or auto_wrap_policy left a part of the model out",
       .steps = {{CheckBy::kLog,
                  "the exception names the switch to sharded parameters: it is the order or the set of parameters, not "
                  "a learning rate"},
                 {CheckBy::kYou,
                  "find where the optimizer is built: it has to come after fully_shard or accelerator.prepare(model)"},
                 {CheckBy::kYou, "look for add_param_group after the wrap"},
                 {CheckBy::kYou, "compare auto_wrap_policy with the model's layers (--accelerate-config FILE does it)"},
                 {CheckBy::kYou,
                  "print id(p) of model.parameters() before and after the wrap, and of the optimizer's groups"},
                 {CheckBy::kTied, "a tied weight is one parameter: the optimizer may hold it once"},
                 {CheckBy::kYou, "adapters and a head that was taken out have to be there before the wrap"}},
       .fix_there = "build the optimizer from model.parameters() after sharding, or pass model and optimizer to one "
                    "accelerator.prepare call; take out of it what is no "
                    "parameter of the model; add adapters before the wrap",
       .fix_here = "OptimizerGuard admits managed parameters alone, adopts an optimizer that was built before, and "
                   "names the parameter it refuses",
       .match = not_switched},
      {.id = "optimizer-empty",
       .phase = Phase::kOptimizer,
       .what = "the optimizer was given no parameter",
       .cause = "everything is frozen, or the parameters were taken from a module that a wrapper replaced",
       .steps = {{CheckBy::kLog, "the list of parameters is empty"},
                 {CheckBy::kYou, "print [n for n, p in model.named_parameters() if p.requires_grad]"}},
       .fix_there = "give model.parameters() of the wrapped model, and leave at least one parameter trainable",
       .fix_here =
           "--freeze and --param-groups refuse a pattern that leaves nothing to train, before anything is loaded",
       .match = empty_list},
      {.id = "tensor-beside-shards",
       .phase = Phase::kStep,
       .what = "an operation is given a sharded and a plain tensor",
       .cause = "a parameter that no fully_shard unit owns is used with one that is sharded: a module that was added "
                "after the wrap, a weight that was replaced, or a "
                "head that runs outside of its unit's forward",
       .steps = {{CheckBy::kLog, "a torch.Tensor and a DTensor meet"},
                 {CheckBy::kYou,
                  "print the parameters that are no DTensor: [n for n, p in model.named_parameters() if not hasattr(p, "
                  "'placements')]"},
                 {CheckBy::kTied, "a tied head uses the embedding's parameter: both have to be in one unit"}},
       .fix_there =
           "add modules before fully_shard, and put the modules that share a weight into one fully_shard([a, b]) call",
       .fix_here = "fully_shard refuses a parameter that no unit owns (unmanaged-parameter), and a tied weight belongs "
                   "to the root's unit",
       .match = mixed_tensors},
      {.id = "optimizer-state-missing",
       .phase = Phase::kOptimizer,
       .what = "a checkpoint holds no optimizer state for a parameter",
       .cause = "the parameter was frozen or had no gradient yet when it was saved, or is tied and was saved under "
                "another of its names",
       .steps = {{CheckBy::kLog, "a key of the optimizer's state is not in the checkpoint"},
                 {CheckBy::kTied, "a tied weight's state lies under one name"},
                 {CheckBy::kYou, "compare which parameters were trainable then and now"}},
       .fix_there = "load with allow_partial_load, or make the same parameters trainable as when it was saved",
       .fix_here = "a checkpoint says for each parameter that it has no state yet, and resuming goes on with that",
       .match = state_missing}};
  return failures;
}

} // namespace tieshard
