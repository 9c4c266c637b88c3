// tieshard/runtime/train/train_config.h
//
// Everything that a training run is told.
//
// Flow: cli/runtime/train_verb -> [this] -> trainer

#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tieshard/core/optim/lr_schedule.h"
#include "tieshard/core/optim/param_group_rules.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/resolved_model.h"
#include "tieshard/runtime/fsdp/policy.h"
#include "tieshard/runtime/load/shard_loader.h"
#include "tieshard/runtime/optim/bf16_options.h"
#include "tieshard/runtime/state/checkpoint_writer.h"
#include "tieshard/runtime/train/parallelize.h"
#include "tieshard/runtime/train/token_data.h"

namespace tieshard {

enum class OptimizerKind { kAdamW, kSgd, kLion };

/// What a run does when a gradient is infinite or not a number: end with an error, or leave that step out on all ranks
/// together, with a warning that says where it came from.
enum class OnNonFiniteGradient { kStop, kSkip };

/// When a run saves its state into OUT/checkpoints, and how. With neither steps nor minutes it saves only when a signal
/// tells it to stop.
struct SaveConfig {
  std::int64_t every_steps = 0;         ///< and after the last one; 0: not by steps
  double every_minutes = 0;             ///< and after the last step; 0: not by time
  std::int64_t keep = 3;                ///< newest checkpoints that stay; 0: all
  std::optional<BusySave> background{}; ///< save in the background, and what a save does that comes too early
};

struct TrainConfig {
  std::filesystem::path model; ///< Hugging Face checkpoint directory
  std::filesystem::path data;  ///< token file
  /// Gets config.json, metrics.jsonl, summary.json, checkpoints/ and export/, of an adapter adapter/.
  std::filesystem::path out;
  ResolveOptions resolve{}; ///< ties and names beside what config and files say
  std::int64_t steps = 100;
  std::int64_t batch = 1;      ///< sequences that each rank computes at once
  std::int64_t sequence = 512; ///< tokens
  /// Batches of each rank in a step: their gradients are kept whole on the rank, and exchanged with the last one's.
  std::int64_t gradient_accumulation_steps = 1;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double lr = 1e-4;
  std::optional<double> weight_decay{};                  ///< 0.01 for AdamW, 0 for SGD and Lion when not given
  double beta1 = 0.9;                                    ///< of AdamW and Lion
  std::optional<double> beta2{};                         ///< of AdamW (0.999 when not given) and Lion (0.99)
  double eps = 1e-8;                                     ///< of AdamW
  double momentum = 0;                                   ///< of SGD
  bool nesterov = false;                                 ///< of SGD
  Bf16Update bf16_update = Bf16Update::kNearest;         ///< of shards in bfloat16
  std::vector<std::string> freeze{};                     ///< patterns of parameters that stay as they are
  std::vector<ParamGroupRule> param_groups{};            ///< what gets another rate or weight decay than the rest
  LrScheduleOptions schedule{};                          ///< its total is set by the run
  bool schedule_by_tokens = false;                       ///< the schedule's lengths are tokens of all ranks, not steps
  double clip = std::numeric_limits<double>::infinity(); ///< largest gradient norm
  OnNonFiniteGradient on_nonfinite_gradient = OnNonFiniteGradient::kStop;
  at::ScalarType param_dtype = at::ScalarType::Float;   ///< of shards and gradients
  at::ScalarType compute_dtype = at::ScalarType::Float; ///< of the unsharded parameters and activations
  ShardDimPolicy shard_dim = ShardDimPolicy::kLast;
  std::map<std::string, int> shard_dims{}; ///< overrides, by name
  ReshardAfterForward reshard_after_forward = true;
  std::int64_t forward_prefetch = 0; ///< layers that are gathered ahead; of the backward the same
  std::int64_t backward_prefetch = 0;
  bool activation_checkpointing = false;   ///< keep a layer's input only, and compute the layer again in the backward
  std::optional<AdapterOptions> adapter{}; ///< train this alone; the base stays as it is
  bool export_model = true;                ///< write export/ at the end, or adapter/
  std::optional<DType> export_dtype{};     ///< of export/; nothing: each tensor's in the model's files
  SaveConfig save{};
  /// A checkpoint or a run to go on from; empty: `out`, from the start where that holds no checkpoint.
  std::optional<std::filesystem::path> resume{};
  bool verify = false; ///< compare the hashes of the checkpoint that is gone on from
  bool shuffle = true;
  std::uint64_t seed = 0;
  LoadOptions load{}; ///< threads and progress are set by the run
  int threads = 1;    ///< of this rank: compute and reading
  TokenFormat data_format = TokenFormat::kAuto;
  TokenDtype data_dtype = TokenDtype::kAuto;
  std::filesystem::path label_mask{};               ///< of `data`: a byte a token, 0: no target; empty: all are targets
  bool documents = false;                           ///< those of Megatron's index do not see one another
  std::optional<std::int64_t> document_separator{}; ///< the same with documents that end at this token
  std::int64_t target = 0;                          ///< of `sequence`, the last tokens: an encoder-decoder's targets
  std::filesystem::path eval_data{};                ///< token file that the loss is reported of; empty: none
  std::filesystem::path eval_label_mask{};          ///< of `eval_data`
  std::int64_t eval_every = 0;                      ///< steps; 0: after the last one only
  std::int64_t eval_samples = 0;                    ///< of `eval_data`, from its start; 0: all
  bool tensorboard = false;                         ///< write event files into OUT/tensorboard
  std::string flags_json{};                         ///< every flag that is in force, for OUT/config.json; empty: none

  /// Tokens that `ranks` ranks together train on in a step.
  std::int64_t tokens_of_step(std::int64_t ranks) const {
    return batch * gradient_accumulation_steps * sequence * ranks;
  }
};

} // namespace tieshard
