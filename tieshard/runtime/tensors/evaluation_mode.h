// tieshard/runtime/tensors/evaluation_mode.h
//
// A module without dropout for a while.
//
// Flow: runtime/train/evaluation, runtime/generate -> [this]

#pragma once

#include <torch/nn/module.h>

namespace tieshard {

/// While it lives the module does not train (Module::eval); then it trains or not as before.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : module_(module), trains_(module.is_training()) {
    module_.eval();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() {
    module_.train(trains_);
  }

 private:
  torch::nn::Module& module_;
  bool trains_;
};

} // namespace tieshard
