// tieshard/runtime/adapters/lora.h
//
// Puts LoRA adapters beside a module's layers: at any time, of whole sizes, and managed wherever the base is.
//
// Flow:   core/adapters/lora_plan, a module -> [this] -> load, fsdp, optim as for any parameter
// Source: PEFT's inject_adapter_in_model; parameter names are its own, without the adapter's name.

#pragma once

#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "tieshard/core/adapters/lora_plan.h"
#include "tieshard/core/families/parameter_table.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/runtime/fsdp/fsdp_state.h"

namespace tieshard {

/// The linear layers and embeddings of any module (tieshard's and LibTorch's), with their whole sizes, whatever their
/// weights hold now. For plan_lora. @param output_head  fqn of a layer that "all-linear" leaves out, or ""
std::vector<AdaptableModule> adaptable_modules(const torch::nn::Module& module, const std::string& output_head = "");

/// Registers A and B of each target in its module ("<module>.lora_A.weight", ...; of an embedding
/// "<module>.lora_embedding_A", ...) and freezes every other parameter but those of modules_to_save. From then on the
/// module's forward adds them; around that of LibTorch's own layers put a WeightOverlay. A and B are `dtype`, whole, on
/// the device of the base's weight: on meta without values (load_shards gives them those of lora_inits), else with
/// them.
///
/// Call it before fully_shard: the parameters are planned, sharded and trained as all others. On ranks: on every one.
/// @returns the new parameters with their whole shapes, for ShardPlan::extended where a plan exists already
/// @throws UsageError unknown-target (a module that is not there or of another class), wrong-state (some layer has an
///         adapter already, of whatever plan; dropout or a tied adapter for a layer of LibTorch; the module is sharded:
///         see the overload below)
ParameterTable add_lora(torch::nn::Module& module, const LoraPlan& plan, at::ScalarType dtype = at::kFloat);

/// The same after fully_shard: the new parameters are managed as if they had been there before. Build the optimizer
/// afterwards. Every rank must call it. @throws as above
void add_lora(FsdpState& state, const LoraPlan& plan, at::ScalarType dtype = at::kFloat);

/// What of a module is trained, each parameter once.
struct TrainedShare {
  std::int64_t trained = 0; ///< elements
  std::int64_t all = 0;
};

/// By the plan's whole shapes, of a sharded module.
TrainedShare trained_share(const FsdpState& state);

} // namespace tieshard
