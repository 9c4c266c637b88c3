#include "tieshard/runtime/fsdp/fsdp_param_group.h"

#include <utility>

#include <ATen/ATen.h>

#include "tieshard/runtime/mesh/collectives.h"

namespace tieshard {

FsdpParamGroup::FsdpParamGroup(std::string name,
                               std::vector<FsdpParam> parameters,
                               DeviceMesh mesh,
                               const FullyShardOptions& options)
    : name_(std::move(name)), parameters_(std::move(parameters)), mesh_(std::move(mesh)) {
  at::ScalarType stored = parameters_.empty() ? at::ScalarType::Float : parameters_.front().shard().scalar_type();
  for (const FsdpParam& parameter : parameters_) { // what is gathered in one buffer may not be rounded there
    stored = c10::promoteTypes(stored, parameter.shard().scalar_type());
  }
  compute_dtype_ = options.mp_policy.param_dtype.value_or(stored);
  reduce_dtype_ = options.mp_policy.reduce_dtype.value_or(compute_dtype_);
  divide_factor_ = options.gradient_divide_factor.value_or(static_cast<double>(mesh_.size()));
}

void FsdpParamGroup::unshard() {
  if (unsharded_) {
    return;
  }
  for (const FsdpParam& parameter : parameters_) {
    parameter.require_own_storage();
  }
  const at::NoGradGuard no_grad;
  gather();
  for (FsdpParam& parameter : parameters_) {
    parameter.use_whole();
  }
  unsharded_ = true;
}

void FsdpParamGroup::gather() {
  std::int64_t total = 0;
  for (FsdpParam& parameter : parameters_) {
    parameter.allocate_whole();
    total += parameter.whole() ? 0 : parameter.chunk_numel();
  }
  if (total == 0) {
    return;
  }
  const at::TensorOptions options = at::TensorOptions().dtype(compute_dtype_);
  at::Tensor mine = at::empty({total}, options);
  std::int64_t offset = 0;
  for (const FsdpParam& parameter : parameters_) {
    if (!parameter.whole()) {
      parameter.write_shard_to(mine.narrow(0, offset, parameter.chunk_numel()));
      offset += parameter.chunk_numel();
    }
  }
  at::Tensor all = mine;
  if (mesh_.size() > 1) {
    all = at::empty({mesh_.size() * total}, options);
    all_gather_into_tensor(mesh_, all, mine);
  }
  for (std::int64_t rank = 0; rank < mesh_.size(); ++rank) {
    offset = rank * total;
    for (FsdpParam& parameter : parameters_) {
      if (!parameter.whole()) {
        parameter.read_part_from(all.narrow(0, offset, parameter.chunk_numel()), rank);
        offset += parameter.chunk_numel();
      }
    }
  }
}

void FsdpParamGroup::reshard() {
  if (!unsharded_) {
    return;
  }
  for (FsdpParam& parameter : parameters_) {
    parameter.use_shard();
  }
  unsharded_ = false;
}

void FsdpParamGroup::pre_backward() {
  unshard();
  for (FsdpParam& parameter : parameters_) {
    parameter.stash_sharded_gradient();
  }
  in_backward_ = true;
}

void FsdpParamGroup::post_backward() {
  if (!in_backward_) {
    return;
  }
  const at::NoGradGuard no_grad;
  in_backward_ = false;
  mesh_.size() == 1 ? finish_alone() : reduce();
}

void FsdpParamGroup::abandon_backward() {
  in_backward_ = false;
  for (FsdpParam& parameter : parameters_) {
    parameter.drop_gradients();
  }
  reshard();
}

/// One rank: nothing to sum.
void FsdpParamGroup::finish_alone() {
  std::vector<at::Tensor> gradients;
  for (FsdpParam& parameter : parameters_) {
    gradients.push_back(parameter.take_whole_gradient());
  }
  reshard();
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    at::Tensor& gradient = gradients[index];
    if (gradient.defined()) {
      gradient = gradient.to(parameters_[index].shard().scalar_type());
      if (divide_factor_ != 1.0) {
        gradient.div_(divide_factor_);
      }
    }
    parameters_[index].put_sharded_gradient(gradient);
  }
}

/// One buffer [ranks, chunks + flags]: each rank's chunk of every gradient, then one flag for each parameter that says
/// whether this rank had a gradient, so that "nobody had one" survives the sum.
void FsdpParamGroup::reduce() {
  const auto flags = static_cast<std::int64_t>(parameters_.size());
  std::int64_t total = flags;
  for (const FsdpParam& parameter : parameters_) {
    total += parameter.chunk_numel();
  }
  at::Tensor input = at::zeros({mesh_.size(), total}, at::TensorOptions().dtype(reduce_dtype_));
  std::int64_t offset = 0;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    FsdpParam& parameter = parameters_[index];
    if (const at::Tensor gradient = parameter.take_whole_gradient(); gradient.defined()) {
      for (std::int64_t rank = 0; rank < mesh_.size(); ++rank) {
        parameter.write_gradient_part_to(gradient, input[rank].narrow(0, offset, parameter.chunk_numel()), rank);
      }
      input.narrow(1, total - flags + static_cast<std::int64_t>(index), 1).fill_(1);
    }
    offset += parameter.chunk_numel();
  }
  reshard();
  at::Tensor output = at::empty({total}, input.options());
  reduce_scatter_tensor(mesh_, output, input.view({-1}));
  if (divide_factor_ != 1.0) {
    output.narrow(0, 0, total - flags).div_(divide_factor_);
  }
  offset = 0;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    FsdpParam& parameter = parameters_[index];
    const bool any = output[total - flags + static_cast<std::int64_t>(index)].item<double>() > 0;
    parameter.put_sharded_gradient(any ? parameter.gradient_from(output.narrow(0, offset, parameter.chunk_numel()))
                                       : at::Tensor());
    offset += parameter.chunk_numel();
  }
}

} // namespace tieshard
