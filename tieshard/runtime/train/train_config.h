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

#include <c10/core/ScalarType.h>

#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/resolved_model.h"
#include "tieshard/runtime/fsdp/policy.h"
#include "tieshard/runtime/load/shard_loader.h"
#include "tieshard/runtime/train/parallelize.h"
#include "tieshard/runtime/train/token_data.h"

namespace tieshard {

struct TrainConfig {
  std::filesystem::path model; ///< Hugging Face checkpoint directory
  std::filesystem::path data;  ///< token file
  std::filesystem::path out;   ///< gets metrics.jsonl, summary.json and export/, of an adapter adapter/ in its place
  ResolveOptions resolve{};    ///< ties and names beside what config and files say
  std::int64_t steps = 100;
  std::int64_t batch = 1;      ///< sequences that each rank computes at once
  std::int64_t sequence = 512; ///< tokens
  /// Batches of each rank in a step: their gradients are kept whole on the rank, and exchanged with the last one's.
  std::int64_t gradient_accumulation_steps = 1;
  double lr = 1e-4;
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double clip = std::numeric_limits<double>::infinity(); ///< largest gradient norm
  at::ScalarType param_dtype = at::ScalarType::Float;    ///< of shards, gradients and moments
  at::ScalarType compute_dtype = at::ScalarType::Float;  ///< of the unsharded parameters and activations
  ShardDimPolicy shard_dim = ShardDimPolicy::kLast;
  std::map<std::string, int> shard_dims{}; ///< overrides, by name
  ReshardAfterForward reshard_after_forward = true;
  std::int64_t forward_prefetch = 0; ///< layers that are gathered ahead; of the backward the same
  std::int64_t backward_prefetch = 0;
  bool activation_checkpointing = false;   ///< keep a layer's input only, and compute the layer again in the backward
  std::optional<AdapterOptions> adapter{}; ///< train this alone; the base stays as it is
  bool export_model = true;                ///< write export/ at the end, or adapter/
  bool shuffle = true;
  std::uint64_t seed = 0;
  LoadOptions load{}; ///< threads and progress are set by the run
  int threads = 1;    ///< of this rank: compute and reading
  TokenDtype data_dtype = TokenDtype::kAuto;
};

} // namespace tieshard
