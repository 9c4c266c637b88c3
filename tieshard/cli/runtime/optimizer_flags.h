// tieshard/cli/runtime/optimizer_flags.h
//
// The flags of `tieshard train` that say how a step is made of a gradient.
//
// Flow: train_verb -> [this] -> TrainConfig

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/runtime/train/train_config.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
} // namespace CLI

namespace tieshard::cli {

/// What was given; nothing where the optimizer's or the schedule's own value holds.
struct OptimizerFlags {
  std::string optimizer = "adamw";
  double lr = 1e-4;
  std::optional<double> weight_decay{};
  std::optional<double> beta1{};
  std::optional<double> beta2{};
  std::optional<double> eps{};
  std::optional<double> momentum{};
  bool nesterov = false;
  std::optional<std::string> bf16_update{};
  std::vector<std::string> freeze{};
  std::vector<std::string> param_groups{};
  std::string schedule = "constant";
  std::optional<std::int64_t> warmup_steps{};
  std::optional<std::int64_t> decay_steps{};
  std::optional<std::int64_t> warmup_tokens{};
  std::optional<std::int64_t> decay_tokens{};
  std::optional<double> min_lr_ratio{};
  std::optional<std::string> decay_shape{};
  std::optional<double> clip{};
  std::string on_nonfinite_gradient = "stop";
};

void add_optimizer_flags(CLI::App& verb, OptimizerFlags& flags);

/// Sets what the flags say. Pre: the rest of `config` is set, the dtypes above all
/// @param ranks  all ranks of the run
/// @throws InputError bad-flag for a flag that the optimizer, the schedule or the dtype has no use for, and where the
///         schedule does not fit the run
void apply(const OptimizerFlags& flags, std::int64_t ranks, TrainConfig& config);

} // namespace tieshard::cli
