#include "tieshard/core/failures/failure.h"

namespace tieshard {
namespace {

/// ZeRO-3 leaves [0] of a parameter between its uses, FSDP1 a flat one or nothing.
std::optional<Match> partition_used(const LogException& exception) {
  const bool part = says(exception.message, {"shape in current model is torch.Size([0])"}) ||
                    says(exception.message, {"'weight' must be 2-D"}) ||
                    says(exception.message, {"mat2 must be a matrix, got 1-D tensor"}) ||
                    says(exception.message, {"size mismatch, got input", "vec (0)"}) ||
                    says(exception.message, {"'status': 'NOT_AVAILABLE'"}) ||
                    (exception.type == "AssertionError" && says(exception.message, {"'ds_shape'"}));
  return part ? std::optional(Match{.parameter = parameter_in(exception.message)}) : std::nullopt;
}

std::optional<Match> out_of_order(const LogException& exception) {
  const bool order = says(exception.message, {"still have inflight params"}) ||
                     says(exception.message, {"to be in states", "current state is"});
  return order ? std::optional(Match{.parameter = parameter_in(exception.message)}) : std::nullopt;
}

std::optional<Match> not_uniform(const LogException& exception) {
  return says(exception.message, {"Must flatten tensors"}) ? std::optional(Match{}) : std::nullopt;
}

std::optional<Match> layer_class_absent(const LogException& exception) {
  return says(exception.message, {"Could not find the transformer layer class"}) ? std::optional(Match{})
                                                                                 : std::nullopt;
}

std::optional<Match> ties_refused(const LogException& exception) {
  const bool refused =
      exception.type == "NotImplementedError" &&
      (says(exception.message, {"eight tying", "support"}) || says(exception.message, {"ied weights", "support"}) ||
       says(exception.message, {"ied embedding", "support"}));
  return refused ? std::optional(Match{}) : std::nullopt;
}

} // namespace

const std::vector<Failure>& failures_of_units() {
  static const std::vector<Failure> failures = {
      {.id = "partition-used",
       .phase = Phase::kStep,
       .what = "what a rank keeps of a weight is used as if it were the whole weight",
       .cause =
           "DeepSpeed ZeRO-3 and FSDP1 leave an empty or flat part of a parameter between the uses of its unit; it "
           "was read, loaded or multiplied outside of them, as a tied head does whose weight belongs to the "
           "embedding's unit",
       .steps = {{CheckBy::kLog, "the shape is that of a part: 0 elements, one dimension, or not available"},
                 {CheckBy::kTied, "a tied weight is used by two modules: both have to be in one unit"},
                 {CheckBy::kYou, "find what uses the weight outside of its module's forward"}},
       .fix_there =
           "DeepSpeed: read it under deepspeed.zero.GatheredParameters, load with zero.Init's or "
           "from_pretrained's own path, and register_external_parameter for a weight of another module; FSDP1: "
           "summon_full_params, and one unit for the modules that share it",
       .fix_here = "a tied weight belongs to the root's unit, and load_shards gives each rank its slices",
       .match = partition_used},
      {.id = "unit-out-of-order",
       .phase = Phase::kStep,
       .what = "a sharded unit is used while another use of it has not ended",
       .cause =
           "an exception that was caught in the middle of a step, a call of a submodule instead of the root, layers "
           "that are used in another order or not at all on a rank, or a weight that two units share",
       .steps = {{CheckBy::kLog, "the message says in what state the unit is"},
                 {CheckBy::kYou, "look for the first exception above it, and for a try around forward or backward"},
                 {CheckBy::kTied, "a tied weight of two units is gathered by one while the other uses it"}},
       .fix_there = "call the root's forward; end the process after an exception in a step; let all ranks use the same "
                    "layers in the same order; put the modules that share a weight into one unit",
       .fix_here = "an error on one rank ends the step on all of them, and a tied weight belongs to one unit",
       .match = out_of_order},
      {.id = "unit-not-uniform",
       .phase = Phase::kShard,
       .what = "FSDP1 cannot flatten a unit whose parameters differ",
       .cause = "FSDP1 joins the parameters of a unit into one, so all need the same dtype and device and, without "
                "use_orig_params, the same requires_grad: frozen parts, adapters, or norms in float32",
       .steps = {{CheckBy::kLog, "the message says in what they differ"},
                 {CheckBy::kYou,
                  "print {n: (p.dtype, p.requires_grad, p.device) for n, p in model.named_parameters()}"}},
       .fix_there =
           "cast the model to one dtype before the wrap; use_orig_params=True for frozen parts and adapters; or "
           "FSDP2, which keeps each parameter",
       .fix_here = "parameters stay apart in a unit, and each may have its dtype and be frozen",
       .match = not_uniform},
      {.id = "layer-class-absent",
       .phase = Phase::kShard,
       .what = "the class that is to be wrapped is not in the model",
       .cause = "fsdp_transformer_layer_cls_to_wrap, or the model's _no_split_modules, names a layer of another "
                "architecture or version",
       .steps = {{CheckBy::kLog, "the message names the class"},
                 {CheckBy::kYou, "print {type(m).__name__ for m in model.modules()}"},
                 {CheckBy::kYou, "tieshard doctor DIR --accelerate-config FILE names the layer"}},
       .fix_there = "set fsdp_transformer_layer_cls_to_wrap to the model's layer, or leave it out",
       .fix_here = "units come from the model's own layers, and the plan lists them",
       .match = layer_class_absent},
      {.id = "ties-refused",
       .phase = Phase::kShard,
       .what = "the framework does not take a tied model here",
       .cause = "pipeline stages put embedding and head on different ranks, so one weight would have to be in two "
                "places",
       .steps = {{CheckBy::kLog, "the message says that ties are not supported"},
                 {CheckBy::kTied, "which names are one weight"}},
       .fix_there = "use a degree of 1 for the pipeline, or store head and embedding as two weights and set "
                    "tie_word_embeddings to false: then they are trained apart",
       .fix_here = "sharding without a pipeline keeps the tie, whatever the number of ranks",
       .match = ties_refused}};
  return failures;
}

} // namespace tieshard
