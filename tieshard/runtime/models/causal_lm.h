// tieshard/runtime/models/causal_lm.h
//
// What every decoder-only language model offers to the rest of the runtime: a forward, its units, and the loss.
//
// Flow: make_model -> [this] -> load, fsdp, train

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tieshard/runtime/models/layers.h"
#include "tieshard/runtime/models/unit_runner.h"

namespace tieshard {

/// A submodule that is gathered and reduced as one, or several of them together.
struct UnitModule {
  std::string name; ///< its fqn; "" for the model itself
  torch::nn::Module* module = nullptr;
  std::vector<torch::nn::Module*> with{}; ///< gathered when the first of all runs, freed when all have run
};

class CausalLm : public torch::nn::Module {
 public:
  /// ids int64 [B, T] -> logits [B, T, V], in the dtype of the parameters.
  at::Tensor forward(const at::Tensor& ids);

  /// scale * causal_lm_loss_sum(forward(ids), labels), but the logits exist in pieces only, forward and backward
  /// (linear_cross_entropy.h). `scale` is mostly 1 / the number of targets of the global batch.
  /// @param ids, labels  int64 [B, T]
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels, double scale = 1.0);

  /// The model itself first, then each decoder layer.
  virtual std::vector<UnitModule> units() = 0;

  /// What runs the units from now on; null for the default, which calls through.
  void set_unit_runner(std::shared_ptr<UnitRunner> runner);

  const std::shared_ptr<UnitRunner>& unit_runner() const noexcept {
    return runner_;
  }

 protected:
  /// ids int64 [B, T] -> what the head is applied to [B, T, H]. Runs inside the root unit.
  virtual at::Tensor hidden_states(const at::Tensor& ids) = 0;

  /// Its weight is [V, H]; the embedding where they are tied.
  virtual const LinearImpl& head() const = 0;

 private:
  std::shared_ptr<UnitRunner> runner_ = std::make_shared<UnitRunner>();
};

/// A label that is no target.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// Targets in labels [B, T]: those at positions 1 .. T-1 that are not kIgnoredLabel.
std::int64_t count_targets(const at::Tensor& labels_BT);

/// Sum over all targets of the cross entropy, in nats, computed in float32: logits[:, t] predicts labels[:, t + 1]; the
/// last position predicts nothing. Divide by the number of targets of the global batch for the mean: a mean of rank
/// means is wrong when ranks hold unequal counts. A batch without targets gives 0 and zero gradients.
at::Tensor causal_lm_loss_sum(const at::Tensor& logits_BTV, const at::Tensor& labels_BT);

} // namespace tieshard
