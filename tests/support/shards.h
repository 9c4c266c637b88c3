// tests/support/shards.h
//
// Compares what each rank holds with its part of a whole that was computed without sharding.

#pragma once

#include <map>
#include <string>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/fsdp/fsdp_state.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard::testing {

/// Whole tensors by canonical name.
using Wholes = std::map<std::string, at::Tensor>;

inline Wholes values_of(const torch::nn::Module& module) {
  Wholes values;
  for (const NamedTensor& named : unique_parameters(module)) {
    values[named.fqn] = named.tensor.detach().clone();
  }
  return values;
}

/// Undefined where a parameter has none.
inline Wholes gradients_of(const torch::nn::Module& module) {
  Wholes gradients;
  for (const NamedTensor& named : unique_parameters(module)) {
    gradients[named.fqn] = named.tensor.grad().defined() ? named.tensor.grad().clone() : at::Tensor();
  }
  return gradients;
}

/// The part of `whole` that this rank holds of `parameter`.
inline at::Tensor part_of_whole(const FsdpState& state, const FsdpParam& parameter, const at::Tensor& whole) {
  if (parameter.replicated()) {
    return whole;
  }
  const ChunkRange range = state.plan().range(parameter.spec(), state.mesh().rank());
  return whole.narrow(parameter.spec().dim, range.offset, range.size);
}

inline void expect_close(const at::Tensor& found,
                         const at::Tensor& expected,
                         double tolerance,
                         const std::string& what) {
  ASSERT_EQ(found.sizes().vec(), expected.sizes().vec()) << what;
  if (found.numel() > 0) {
    EXPECT_LE((found.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(), tolerance) << what;
  }
}

/// Every managed parameter is this rank's part of `wholes`, to `tolerance` (absolute).
inline void expect_shards(const FsdpState& state, const Wholes& wholes, double tolerance) {
  EXPECT_EQ(state.managed().size(), wholes.size());
  for (const FsdpParam* parameter : state.managed()) {
    const at::Tensor expected = part_of_whole(state, *parameter, wholes.at(parameter->fqn()));
    expect_close(parameter->parameter().detach(), expected, tolerance, state.mesh().where() + " " + parameter->fqn());
  }
}

/// The same for gradients; one that `wholes` has not may not be there.
inline void expect_gradient_shards(const FsdpState& state, const Wholes& wholes, double tolerance) {
  for (const FsdpParam* parameter : state.managed()) {
    const at::Tensor& whole = wholes.at(parameter->fqn());
    const at::Tensor& gradient = parameter->parameter().grad();
    const std::string what = state.mesh().where() + " gradient of " + parameter->fqn();
    ASSERT_EQ(gradient.defined(), whole.defined()) << what;
    if (whole.defined()) {
      expect_close(gradient, part_of_whole(state, *parameter, whole), tolerance, what);
    }
  }
}

/// Nothing is gathered: each tensor of the module is the shard, in the shard's own memory.
inline void expect_resharded(const FsdpState& state) {
  for (const auto& group : state.groups()) {
    EXPECT_FALSE(group->unsharded()) << "unit \"" << group->name() << "\"";
  }
  for (const FsdpParam* parameter : state.managed()) {
    EXPECT_EQ(parameter->parameter().const_data_ptr(), parameter->shard().const_data_ptr()) << parameter->fqn();
    EXPECT_EQ(parameter->parameter().sizes().vec(), parameter->shard().sizes().vec()) << parameter->fqn();
  }
}

} // namespace tieshard::testing
