#include "tieshard/runtime/fsdp/fsdp_param_group.h"

#include <utility>

#include <ATen/ATen.h>

#include "tieshard/runtime/mesh/part_collectives.h"

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
  std::vector<CutTensor> tensors;
  for (FsdpParam& parameter : parameters_) {
    parameter.allocate_whole();
    if (!parameter.whole()) {
      tensors.push_back(parameter.gathered());
    }
  }
  all_gather_parts(mesh_, tensors, name_);
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

/// The dtype in which whole gradients go into the reduction: bfloat16 ones are added up in float32 without a copy.
at::ScalarType FsdpParamGroup::sent_dtype() const {
  const bool widened = compute_dtype_ == at::kBFloat16 && reduce_dtype_ == at::kFloat;
  return widened ? compute_dtype_ : reduce_dtype_;
}

/// Each gradient, and one more tensor of flags that say whether this rank had one, so that "nobody had one" survives
/// the sum.
void FsdpParamGroup::reduce() {
  const auto count = static_cast<std::int64_t>(parameters_.size());
  const at::TensorOptions sent = at::TensorOptions().dtype(sent_dtype());
  at::Tensor flags = at::zeros({count}, sent);
  std::vector<CutTensor> tensors;
  for (std::int64_t index = 0; index < count; ++index) {
    FsdpParam& parameter = parameters_[static_cast<std::size_t>(index)];
    at::Tensor gradient = parameter.take_whole_gradient();
    if (gradient.defined()) {
      flags.narrow(0, index, 1).fill_(1);
      gradient = gradient.to(sent_dtype()).contiguous();
    } else {
      gradient = at::zeros(parameter.spec().shape, sent);
    }
    tensors.push_back(parameter.reduced(gradient, reduce_dtype_));
  }
  reshard();
  tensors.push_back({.shard = at::empty({count}, sent.dtype(reduce_dtype_)),
                     .parts = std::vector<at::Tensor>(static_cast<std::size_t>(mesh_.size()), flags)});
  reduce_scatter_parts(mesh_, tensors, name_);
  const at::Tensor had_gradient = tensors.back().shard;
  for (std::int64_t index = 0; index < count; ++index) {
    FsdpParam& parameter = parameters_[static_cast<std::size_t>(index)];
    at::Tensor shard = std::exchange(tensors[static_cast<std::size_t>(index)].shard, at::Tensor());
    if (divide_factor_ != 1.0) {
      shard.div_(divide_factor_);
    }
    const bool any = had_gradient[index].item<double>() > 0;
    parameter.put_sharded_gradient(any ? shard.to(parameter.shard().scalar_type()) : at::Tensor());
  }
}

} // namespace tieshard
