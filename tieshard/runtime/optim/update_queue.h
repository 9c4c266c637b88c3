// tieshard/runtime/optim/update_queue.h
//
// The tensors of one optimizer step on their way to the arithmetic of core/optim.
//
// Flow: fused_adamw, fused_sgd, lion -> [this] -> core/optim/element_updates

#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tieshard/core/optim/element_updates.h"
#include "tieshard/runtime/optim/bf16_options.h"
#include "tieshard/runtime/optim/bf16_state.h"

namespace tieshard {

using UpdateRule = std::variant<AdamWUpdate, SgdUpdate, LionUpdate>;

/// One parameter in one step. All have the parameter's sizes; moments are float32.
struct StepTensors {
  at::Tensor parameter;
  at::Tensor gradient;
  std::vector<at::Tensor> moments;
};

/// The dtype of the moments that belong to a parameter: float32 for bfloat16, else the parameter's.
at::ScalarType moment_dtype(const at::Tensor& parameter);

/// `moment` in that dtype: LibTorch's optimizers keep those of a bfloat16 parameter in bfloat16.
at::Tensor as_moment(const at::Tensor& moment, const at::Tensor& parameter);

/// The float32 tensor that a bfloat16 parameter is stepped as where the queue does not take it: the master weight, or a
/// copy. Whoever steps it copies it back into the parameter.
/// @throws UsageError device-unavailable for stochastic rounding, which only the queue does
at::Tensor widened(const at::Tensor& parameter, Bf16State& state, const Bf16Options& options);

/// Steps a parameter that the queue does not take: `work` changes the parameter that it is given, by that gradient;
/// both are float32 where the parameter is bfloat16.
void step_widened(const at::Tensor& parameter,
                  Bf16State& state,
                  const Bf16Options& options,
                  const std::function<void(at::Tensor parameter, const at::Tensor& gradient)>& work);

class UpdateQueue {
 public:
  explicit UpdateQueue(const Bf16Options& options) : options_(options) {}

  /// Whether this tensor is one for core/optim: float32 or bfloat16 on the host.
  static bool takes(const at::Tensor& parameter);

  /// Pre: takes(tensors.parameter). Nothing is stepped before run().
  /// @param state  of the parameter; its master weight is made here when it is missing
  /// @param slot   number of the parameter in the optimizer
  /// @throws c10::Error for a sparse gradient
  void add(const UpdateRule& rule, const StepTensors& tensors, Bf16State& state, std::uint64_t slot);

  /// Steps everything that was added, on as many threads as at::get_num_threads() says.
  void run();

 private:
  struct Entry {
    std::function<void(std::int64_t begin, std::int64_t count)> update;
    std::int64_t numel = 0;
  };

  at::Tensor contiguous(const at::Tensor& tensor);
  void add_float32(const UpdateRule& rule, const StepTensors& tensors);
  void add_bfloat16(const UpdateRule& rule,
                    const StepTensors& tensors,
                    Bf16State& state,
                    const ElementPlacement& placement);
  void run_on_threads(int threads);

  const Bf16Options& options_;
  std::vector<Entry> entries_;
  std::vector<at::Tensor> kept_;                               ///< what entries point into
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_back_; ///< a tensor with holes, and the copy that is stepped
};

} // namespace tieshard
