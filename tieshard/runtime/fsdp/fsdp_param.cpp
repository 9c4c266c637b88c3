#include "tieshard/runtime/fsdp/fsdp_param.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/tensors/storage_bytes.h"

namespace tieshard {
namespace {

[[noreturn]] void refuse_shape(const ShardedParameter& spec, const Shape& local, const at::Tensor& parameter) {
  throw UsageError(
      {.code = Code::kForeignShape,
       .what = "a parameter is neither whole nor this rank's shard",
       .where = spec.fqn,
       .why = concat(
           "expected ", to_string(spec.shape), " or ", to_string(local), ", got ", to_string(parameter.sizes().vec())),
       .fix = "build the plan from this module and for this many ranks"});
}

} // namespace

void FsdpParam::require_shardable(const ShardPlan& plan,
                                  const ShardedParameter& spec,
                                  const at::Tensor& parameter,
                                  std::int64_t rank) {
  if (parameter.is_meta()) {
    throw UsageError({.code = Code::kStillOnMeta,
                      .what = "a tensor has no bytes yet",
                      .where = spec.fqn,
                      .fix = "call load_shards() before fully_shard()"});
  }
  if (parameter.requires_grad() && !parameter.is_floating_point()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a parameter that requires a gradient has a dtype that is not reduced over ranks",
                      .where = spec.fqn,
                      .why = concat("expected a floating point dtype, got ", c10::toString(parameter.scalar_type())),
                      .fix = "store complex numbers as two real ones (view_as_real), or freeze it"});
  }
  const Shape local = plan.local_shape(spec, rank);
  if (parameter.sizes() != at::IntArrayRef(local) && parameter.sizes() != at::IntArrayRef(spec.shape)) {
    refuse_shape(spec, local, parameter);
  }
}

FsdpParam::FsdpParam(const ShardPlan& plan,
                     const ShardedParameter& spec,
                     at::Tensor parameter,
                     std::int64_t rank,
                     at::ScalarType compute,
                     const OffloadPolicy& offload)
    : spec_(spec), rank_(rank), parameter_(std::move(parameter)) {
  require_shardable(plan, spec, parameter_, rank);
  for (std::int64_t other = 0; other < plan.ranks(); ++other) {
    ranges_.push_back(plan.range(spec, other));
  }
  const at::NoGradGuard no_grad;
  const Shape local = plan.local_shape(spec, rank);
  const at::Tensor data = parameter_.variable_data();
  if (data.sizes() == at::IntArrayRef(local)) {
    shard_ = data.contiguous(); // itself, mostly
  } else {
    shard_ = part_of(data, rank).clone(at::MemoryFormat::Contiguous);
  }
  const at::Device compute_device = shard_.device();
  if (offload.to_host) {
    shard_ = shard_.to(at::kCPU); // itself, if it is there
  }
  whole_ = shard_.device() == compute_device && (plan.ranks() == 1 || replicated()) && shard_.scalar_type() == compute;
  if (whole_) {
    whole_tensor_ = shard_;
  } else {
    whole_tensor_ = at::empty(spec.shape, shard_.options().dtype(compute).device(compute_device));
    free_storage(whole_tensor_);
  }
  parameter_.set_data(shard_);
}

at::Tensor FsdpParam::part_of(const at::Tensor& whole, std::int64_t rank) const {
  if (replicated()) {
    return whole;
  }
  const ChunkRange range = ranges_[static_cast<std::size_t>(rank)];
  return whole.narrow(spec_.dim, range.offset, range.size);
}

std::vector<at::Tensor> FsdpParam::parts_of(const at::Tensor& whole) const {
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < ranges_.size(); ++rank) {
    parts.push_back(part_of(whole, static_cast<std::int64_t>(rank)));
  }
  return parts;
}

CutTensor FsdpParam::gathered() const {
  return {.shard = shard_.to(whole_tensor_.device(), whole_tensor_.scalar_type()), .parts = parts_of(whole_tensor_)};
}

CutTensor FsdpParam::reduced(const at::Tensor& gradient, at::ScalarType dtype) const {
  return {.shard = at::empty(shard_.sizes(), gradient.options().dtype(dtype)), .parts = parts_of(gradient)};
}

void FsdpParam::require_own_storage() const {
  if (!parameter_.is_alias_of(shard_)) {
    throw UsageError(
        {.code = Code::kWrongState,
         .what = "a managed parameter was given other storage",
         .where = spec_.fqn,
         .why = "expected the shard that fully_shard left in it, got another tensor's data",
         .fix = "change values in place (copy_) under NoGradGuard, after FsdpState::reshard(); do not call set_data or "
                "Module::to() on a sharded module"});
  }
}

void FsdpParam::allocate_whole() {
  if (!whole_) {
    allocate_storage(whole_tensor_);
  }
}

void FsdpParam::use_whole() {
  if (!whole_) {
    parameter_.set_data(whole_tensor_);
  }
  unsharded_ = true;
}

void FsdpParam::use_shard() {
  if (!whole_) {
    parameter_.set_data(shard_);
    free_storage(whole_tensor_);
  }
  unsharded_ = false;
}

void FsdpParam::stash_sharded_gradient() {
  if (!stashed_) {
    stashed_gradient_ = std::exchange(parameter_.mutable_grad(), at::Tensor());
    stashed_ = true;
  }
}

at::Tensor FsdpParam::take_whole_gradient() {
  at::Tensor gradient = std::exchange(parameter_.mutable_grad(), at::Tensor());
  at::Tensor kept = std::exchange(kept_gradient_, at::Tensor());
  if (!kept.defined()) {
    return gradient;
  }
  return gradient.defined() ? kept.add_(gradient) : kept;
}

void FsdpParam::keep_whole_gradient(at::ScalarType dtype) {
  if (at::Tensor gradient = take_whole_gradient(); gradient.defined()) {
    kept_gradient_ = gradient.to(dtype);
  }
}

void FsdpParam::drop_kept_gradient() {
  kept_gradient_.reset();
}

void FsdpParam::drop_gradients() {
  parameter_.mutable_grad().reset();
  stashed_gradient_.reset();
  kept_gradient_.reset();
  stashed_ = false;
}

void FsdpParam::put_sharded_gradient(const at::Tensor& addition) {
  at::Tensor gradient = std::exchange(stashed_gradient_, at::Tensor());
  stashed_ = false;
  if (addition.defined()) {
    const at::Tensor here = addition.to(shard_.device());
    gradient = gradient.defined() ? gradient.add_(here) : here;
  }
  parameter_.mutable_grad() = gradient;
}

} // namespace tieshard
