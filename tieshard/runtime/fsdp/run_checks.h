// tieshard/runtime/fsdp/run_checks.h
//
// What a unit's forward may not do, since it would compute something wrong without an error: run inside itself, change
// an input in place, give its parameters away.
//
// Flow: fsdp_state -> [this]

#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tieshard/runtime/fsdp/fsdp_param.h"

namespace tieshard {

/// A module that runs now: it may not run again inside itself, on parameters that its inner run would free.
class Running {
 public:
  using Modules = std::unordered_set<const torch::nn::Module*>;

  /// @throws UsageError wrong-state when `unit` is in `running` already
  Running(Modules& running, const torch::nn::Module& unit, const std::string& where);
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running();

 private:
  Modules& running_;
  const torch::nn::Module* unit_;
};

/// How often each tensor was changed in place; 0 where that is not counted.
std::vector<std::uint32_t> versions(const std::vector<at::Tensor>& tensors);

/// The tensors that a forward gets are not those of the caller where a gradient goes through: what it writes into them
/// is seen by the caller, but not by the caller's autograd. One that is computed again would get the changed ones.
/// @param before        versions() of the inputs before the forward
/// @param checkpointed  the forward is computed again in the backward
/// @throws UsageError wrong-state
void require_unchanged(const std::vector<at::Tensor>& inputs,
                       const std::vector<std::uint32_t>& before,
                       bool checkpointed,
                       const std::string& where);

/// A parameter's bytes are freed after its unit, and with them an output that shares them.
/// @throws UsageError wrong-state
void require_own_outputs(const std::vector<at::Tensor>& outputs,
                         const std::vector<FsdpParam>& parameters,
                         const std::string& where);

} // namespace tieshard
