// tieshard/core/state/parameter_names.h
//
// Which tensors of a training checkpoint are parameters, and which are what an optimizer keeps for one.
//
// Flow:   manifest, sharded_files -> [this] -> reshard_plan, export_checkpoint
// Source: the names of torch.optim's state: exp_avg, exp_avg_sq, momentum_buffer; master_weight is this project's.

#pragma once

#include <map>
#include <optional>
#include <string>

#include "tieshard/core/state/manifest.h"
#include "tieshard/core/state/sharded_files.h"

namespace tieshard {

class ParameterNames {
 public:
  /// @param manifest  says it; null: a tensor whose name is a parameter's with a known ending, "w.exp_avg" beside "w",
  ///                  is optimizer state
  ParameterNames(const ShardedFiles& files, const Manifest* manifest);

  /// The parameter that `tensor` belongs to: itself, or the one that it is a moment of.
  const std::string& parameter_of(const std::string& tensor) const;

  bool is_optimizer_state(const std::string& tensor) const {
    return parameters_.contains(tensor);
  }

 private:
  std::map<std::string, std::string, std::less<>> parameters_; ///< of each tensor that is a moment
};

} // namespace tieshard
