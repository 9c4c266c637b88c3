// tieshard/cli/plan.h
//
// `tieshard plan DIR --ranks N`: what each rank will hold and read, before anything runs.
//
// Flow: app -> [this] -> plan_text, memory_text, plan_summary, json_output

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"
#include "tieshard/core/plan/training_memory.h"

namespace tieshard::cli {

struct PlanOptions {
  std::string directory{};
  std::int64_t ranks = 1;
  std::int64_t ranks_per_host = 0;     ///< 0: all on one host
  std::string param_dtype = "float32"; ///< of parameters and gradients in memory
  TrainingStep step{};                 ///< its compute dtype comes from the next line
  std::string compute_dtype{};         ///< empty: param_dtype
  std::string reshard_after_forward = "true";
  std::int64_t replicas = 1;   ///< copies of the model (HSDP)
  std::string bandwidth{};     ///< a size, of a second; empty: no times
  std::string device_memory{}; ///< a size; empty: nothing to fit into
  bool compare = false;        ///< every choice of shard dim, precision and resharding
  OpenFlags open{};
  ShardFlags shard{};
  LoadFlags load{};
  bool all = false; ///< every parameter with its dim and parts
  bool json = false;
};

/// Flags are the user's: what ShardPlan refuses as the caller's mistake is an InputError here.
/// @throws InputError whatever resolve_model, ShardPlan::build and find_weight_sources throw; bad-flag, host-memory
int run_plan(const PlanOptions& options, const Console& console);

/// Adds the verb to `app`; its callback fills `chosen`.
void add_plan(CLI::App& app, Verb& chosen);

} // namespace tieshard::cli
