#include "tieshard/core/failures/failure.h"

namespace tieshard {
namespace {

std::optional<Match> bad_file(const LogException& exception) {
  const bool header =
      exception.type == "SafetensorError" || says(exception.message, {"Error while deserializing header"});
  return header ? std::optional(Match{}) : std::nullopt;
}

std::optional<Match> shard_absent(const LogException& exception) {
  const bool absent = exception.type == "FileNotFoundError" || says(exception.message, {"No such file or directory"});
  return absent && exception.message.find(".safetensors") != std::string::npos ? std::optional(Match{}) : std::nullopt;
}

std::optional<Match> keys_missing(const LogException& exception) {
  const bool missing = says(exception.message, {"Missing key(s) in state_dict"}) ||
                       says(exception.message, {"Error(s) in loading state_dict"}) ||
                       says(exception.message, {"Missing key in checkpoint state_dict"});
  return missing ? std::optional(Match{.parameter = parameter_in(exception.message)}) : std::nullopt;
}

std::optional<Match> random_weights(const LogException& exception) {
  return exception.type == kWarningLine ? std::optional(Match{.parameter = parameter_in(exception.message)})
                                        : std::nullopt;
}

std::optional<Match> no_memory(const LogException& exception) {
  const bool memory = exception.type == "OutOfMemoryError" || exception.type == "MemoryError" ||
                      says(exception.message, {"CUDA out of memory"}) ||
                      says(exception.message, {"can't allocate memory"}) ||
                      says(exception.message, {"Cannot allocate memory"});
  if (!memory) {
    return std::nullopt;
  }
  const bool loading = exception.came_through("load") || exception.came_through("from_pretrained");
  const bool stepping = exception.came_through("optim") || exception.came_through("backward");
  return Match{.phase = loading ? Phase::kMaterialize : stepping ? Phase::kOptimizer : Phase::kStep};
}

std::optional<Match> scalar_parameter(const LogException& exception) {
  const bool scalar =
      says(exception.message, {"support", "scalar parameter"}) || says(exception.message, {"0-dim", "fully_shard"}) ||
      says(exception.message, {"fully_shard", "0-D"}) || says(exception.message, {"fully_shard", "scalar"});
  if (!scalar) {
    return std::nullopt;
  }
  constexpr std::string_view kChange = "Change "; // torch: "Change NAME to a 1D tensor"
  const std::size_t at = exception.message.find(kChange);
  if (at == std::string::npos) {
    return Match{.parameter = parameter_in(exception.message)};
  }
  const std::size_t name = at + kChange.size();
  return Match{.parameter = exception.message.substr(name, exception.message.find(' ', name) - name)};
}

} // namespace

const std::vector<Failure>& failures_of_loading() {
  static const std::vector<Failure> failures = {
      {.id = "scalar-parameter",
       .phase = Phase::kShard,
       .what = "a parameter without dimensions cannot be sharded",
       .cause = "FSDP2 shards on a dimension, and a 0-dim parameter has none",
       .steps = {{CheckBy::kLog, "the message names a scalar parameter"},
                 {CheckBy::kYou, "print [n for n, p in model.named_parameters() if p.dim() == 0]"}},
       .fix_there = "give it one dimension (torch.tensor([x])), or name it in ignored_params",
       .fix_here = "0-dim parameters are replicated, and the plan lists them",
       .match = scalar_parameter},
      {.id = "weights-file-broken",
       .phase = Phase::kMaterialize,
       .what = "a weights file cannot be read",
       .cause = "a download or save that was cut, a Git LFS pointer or a pickle under the name of a safetensors file, "
                "or two tensors that claim the same bytes",
       .steps = {{CheckBy::kLog, "the reader of safetensors refuses the header"},
                 {CheckBy::kLoads, "which file it is, and what it is instead"}},
       .fix_there = "download or save the file again; convert pickles with save_pretrained(safe_serialization=True)",
       .fix_here = "tieshard doctor DIR names the file, the rule and the byte",
       .match = bad_file},
      {.id = "shard-absent",
       .phase = Phase::kMaterialize,
       .what = "a weights file that is needed is not there",
       .cause = "the index names a file that was not downloaded, or the directory of another save",
       .steps = {{CheckBy::kLog, "the message names the file"}, {CheckBy::kLoads, "index and files agree"}},
       .fix_there = "complete the download; write index and files in one save",
       .fix_here = "tieshard doctor DIR lists every file that the index names and the directory lacks",
       .match = shard_absent},
      {.id = "keys-missing",
       .phase = Phase::kMaterialize,
       .what = "names of the model are not in the checkpoint",
       .cause = "a wrapper's prefix (module., _orig_mod., base_model.model.), another architecture, or a tied alias "
                "that is not stored under its own name",
       .steps = {{CheckBy::kLog, "the message lists the missing names"},
                 {CheckBy::kStored, "which of the names are stored, and with which prefix"},
                 {CheckBy::kTied, "a tied alias need not be stored"},
                 {CheckBy::kLoads, "every parameter has a source"}},
       .fix_there = "take the prefix off the keys, or tie before loading so that the alias is not asked for",
       .fix_here = "tieshard recognises prefixes as a whole (wrapper-prefix) and reads a tied weight from whichever of "
                   "its names is stored",
       .match = keys_missing},
      {.id = "weights-random",
       .phase = Phase::kMaterialize,
       .what = "weights that no file gave their values are random",
       .cause = "their names are not stored, mostly because of a wrapper's prefix (module., _orig_mod., "
                "base_model.model.) or a tie that was lost; the load goes on with a warning",
       .steps = {{CheckBy::kLog, "a load says that parameters were newly initialized"},
                 {CheckBy::kStored, "which of the names are stored, and with which prefix"},
                 {CheckBy::kTied, "a tied alias need not be stored"},
                 {CheckBy::kLoads, "every parameter has a source"}},
       .fix_there = "take the prefix off the keys of the state dict, or save from the unwrapped model; treat a load "
                    "report with MISSING as an error",
       .fix_here = "tieshard recognises prefixes as a whole and refuses a parameter without a source "
                   "(missing-parameter); random values are given where --init asks for them",
       .match = random_weights},
      {.id = "out-of-memory",
       .phase = Phase::kStep,
       .what = "a rank ran out of memory",
       .cause = "whole tensors were held while loading (every rank reads the full model), or gradients, moments and "
                "activations do not fit",
       .steps = {{CheckBy::kLog, "memory could not be allocated"},
                 {CheckBy::kLoads, "what a load takes on each rank"},
                 {CheckBy::kYou, "tieshard plan DIR --ranks N --compare --device-memory SIZE says what fits"}},
       .fix_there = "load on the meta device with cpu_ram_efficient_loading or from slices; shard on more ranks, lower "
                    "precision, activation checkpointing, smaller batches",
       .fix_here = "a load holds this rank's slices and a read buffer; plan predicts the peak of a step and the "
                   "smallest change that fits",
       .match = no_memory}};
  return failures;
}

} // namespace tieshard
