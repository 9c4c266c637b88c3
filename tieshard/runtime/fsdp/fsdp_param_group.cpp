#include "tieshard/runtime/fsdp/fsdp_param_group.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/part_collectives.h"

namespace tieshard {
namespace {

/// Adds up the shards of all copies of the model, in one collective.
void sum_over_replicas(const DeviceMesh& replicas, const std::vector<CutTensor>& tensors, const std::string& unit) {
  if (replicas.size() == 1) {
    return;
  }
  std::vector<at::Tensor> flat;
  for (const CutTensor& tensor : tensors) {
    flat.push_back(tensor.shard.view({-1}));
  }
  const at::Tensor all = at::cat(flat);
  all_reduce(replicas, all, ReduceOp::kSum, unit);
  std::int64_t offset = 0;
  for (at::Tensor& shard : flat) {
    shard.copy_(all.narrow(0, offset, shard.numel()));
    offset += shard.numel();
  }
}

void require_dense(const FsdpParam& parameter, const at::Tensor& gradient) {
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a gradient is sparse, and shards have dense ones",
                      .where = parameter.fqn(),
                      .fix = "make the module with sparse(false)"});
  }
}

} // namespace

FsdpParamGroup::FsdpParamGroup(std::string name,
                               std::vector<FsdpParam> parameters,
                               const DeviceMesh& mesh,
                               const FullyShardOptions& options,
                               const std::optional<DeviceMesh>& neighbours)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      mesh_(mesh.axis("dp_shard")),
      replicas_(mesh.axis("dp_replicate")),
      mp_policy_(options.mp_policy),
      activation_checkpointing_(options.activation_checkpointing),
      keeps_after_forward_(options.reshard_after_forward == ReshardAfterForward(false)) {
  choose_dtypes();
  divide_factor_ = options.gradient_divide_factor.value_or(static_cast<double>(mesh.size()));
  if (neighbours) {
    post_forward_shards_.emplace(*neighbours);
  }
}

void FsdpParamGroup::add(FsdpParam parameter) {
  parameters_.push_back(std::move(parameter));
  choose_dtypes();
}

void FsdpParamGroup::choose_dtypes() {
  std::optional<at::ScalarType> stored;
  for (const FsdpParam& parameter : parameters_) { // gradients of several dtypes are reduced in one that holds them all
    if (parameter.parameter().is_floating_point()) {
      const at::ScalarType dtype = parameter.shard().scalar_type();
      stored = stored ? c10::promoteTypes(*stored, dtype) : dtype;
    }
  }
  compute_dtype_ = mp_policy_.param_dtype.value_or(stored.value_or(at::ScalarType::Float));
  reduce_dtype_ = mp_policy_.reduce_dtype.value_or(compute_dtype_);
}

bool FsdpParamGroup::trainable() const {
  return std::ranges::any_of(parameters_, &FsdpParam::trainable);
}

void FsdpParamGroup::pre_forward() {
  if (post_forward_shards_) {
    post_forward_shards_->drop(); // an optimizer may have stepped since
  }
  unshard();
}

void FsdpParamGroup::prefetch_forward() {
  if (post_forward_shards_) {
    post_forward_shards_->drop();
  }
  prefetch();
}

void FsdpParamGroup::post_forward(bool has_backward) {
  if (has_backward && keeps_after_forward_) {
    return;
  }
  if (has_backward && post_forward_shards_ && unsharded_) {
    const at::NoGradGuard no_grad;
    post_forward_shards_->keep(parameters_);
    release();
  } else {
    reshard();
  }
}

void FsdpParamGroup::prefetch() {
  if (post_forward_shards_ && post_forward_shards_->held()) {
    unshard();
  } else if (!unsharded_ && !gather_under_way_) {
    start_gather();
  }
}

void FsdpParamGroup::unshard() {
  if (unsharded_) {
    return;
  }
  const at::NoGradGuard no_grad;
  if (post_forward_shards_ && post_forward_shards_->held()) {
    for (FsdpParam& parameter : parameters_) {
      parameter.allocate_whole();
    }
    post_forward_shards_->gather_into(parameters_, name_);
  } else {
    prefetch();
    std::exchange(gather_under_way_, nullptr)();
  }
  for (FsdpParam& parameter : parameters_) {
    parameter.use_whole();
  }
  unsharded_ = true;
}

void FsdpParamGroup::start_gather() {
  for (const FsdpParam& parameter : parameters_) {
    parameter.require_own_storage();
  }
  const at::NoGradGuard no_grad;
  std::vector<CutTensor> tensors;
  for (FsdpParam& parameter : parameters_) {
    parameter.allocate_whole();
    if (!parameter.whole()) {
      tensors.push_back(parameter.gathered());
    }
  }
  gather_under_way_ = start_all_gather_parts(mesh_, tensors, name_);
}

void FsdpParamGroup::reshard() {
  if (post_forward_shards_) {
    post_forward_shards_->drop();
  }
  release();
  if (std::exchange(gradients_are_stashed_, false)) {
    put_back_gradients();
  }
}

void FsdpParamGroup::release() {
  if (const auto wait = std::exchange(gather_under_way_, nullptr)) { // what was prefetched and is not needed
    try {
      wait();
    } catch (const PeerError&) {
      // Nobody asks for these bytes. The next collective meets the lost rank again, and says so where it matters.
    }
    unsharded_ = true;
  }
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
  gradients_are_stashed_ = false; // post_backward() puts them back
}

void FsdpParamGroup::post_backward() {
  if (!in_backward_) {
    return;
  }
  const at::NoGradGuard no_grad;
  in_backward_ = false;
  if (!gradient_sync_) {
    keep_gradients();
    return;
  }
  for (FsdpParam& parameter : parameters_) {
    if (!parameter.trainable()) {
      parameter.drop_kept_gradient(); // of a pass before it was frozen
    }
  }
  if (!trainable()) {
    reshard();
    put_back_gradients();
  } else {
    mesh_.size() * replicas_.size() == 1 ? finish_alone() : reduce();
  }
}

void FsdpParamGroup::end_of_pass() {
  if (!in_backward_ && gradient_sync_ && has_unreduced_gradients()) {
    for (FsdpParam& parameter : parameters_) {
      parameter.stash_sharded_gradient();
    }
    in_backward_ = true;
    gradients_are_stashed_ = false;
  }
  post_backward();
}

void FsdpParamGroup::set_gradient_sync(bool sync, bool keep_whole) {
  gradient_sync_ = sync;
  keeps_after_backward_ = !sync && keep_whole && keeps_after_forward_;
}

bool FsdpParamGroup::has_unreduced_gradients() const {
  return std::ranges::any_of(parameters_, &FsdpParam::has_kept_gradient);
}

void FsdpParamGroup::drop_kept_gradients() {
  holds_passes_ = false;
  for (FsdpParam& parameter : parameters_) {
    parameter.drop_kept_gradient();
  }
}

void FsdpParamGroup::keep_gradients() {
  for (FsdpParam& parameter : parameters_) {
    parameter.keep_whole_gradient(reduce_dtype_);
  }
  holds_passes_ = true;
  gradients_are_stashed_ = true;
  if (!keeps_after_backward_) {
    reshard();
  }
}

void FsdpParamGroup::put_back_gradients() {
  for (FsdpParam& parameter : parameters_) {
    parameter.put_sharded_gradient({});
  }
}

void FsdpParamGroup::abandon_backward() {
  in_backward_ = false;
  gradients_are_stashed_ = false;
  holds_passes_ = false;
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
    require_dense(parameter, gradients.back());
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
  std::vector<FsdpParam*> trainable;
  for (FsdpParam& parameter : parameters_) {
    if (parameter.trainable()) {
      trainable.push_back(&parameter);
    }
  }
  const auto count = static_cast<std::int64_t>(trainable.size());
  // gradients of several passes were added up in the reduce dtype, and are not rounded now
  const at::ScalarType dtype = std::exchange(holds_passes_, false) ? reduce_dtype_ : sent_dtype();
  const at::TensorOptions sent = trainable.front()->whole_tensor().options().dtype(dtype);
  at::Tensor flags = at::zeros({count}, sent);
  std::vector<CutTensor> tensors;
  for (std::int64_t index = 0; index < count; ++index) {
    FsdpParam& parameter = *trainable[static_cast<std::size_t>(index)];
    at::Tensor gradient = parameter.take_whole_gradient();
    require_dense(parameter, gradient);
    if (gradient.defined()) {
      flags.narrow(0, index, 1).fill_(1);
      gradient = gradient.to(dtype).contiguous();
    } else {
      gradient = at::zeros(parameter.spec().shape, sent);
    }
    tensors.push_back(parameter.reduced(gradient, reduce_dtype_));
  }
  reshard();
  tensors.push_back({.shard = at::empty({count}, sent.dtype(reduce_dtype_)),
                     .parts = std::vector<at::Tensor>(static_cast<std::size_t>(mesh_.size()), flags)});
  reduce_scatter_parts(mesh_, tensors, name_);
  sum_over_replicas(replicas_, tensors, name_);
  const at::Tensor had_gradient = tensors.back().shard.to(at::kCPU); // at once: each look at a device's waits for it
  for (std::int64_t index = 0; index < count; ++index) {
    FsdpParam& parameter = *trainable[static_cast<std::size_t>(index)];
    at::Tensor shard = std::exchange(tensors[static_cast<std::size_t>(index)].shard, at::Tensor());
    if (divide_factor_ != 1.0) {
      shard.div_(divide_factor_);
    }
    const bool any = had_gradient[index].item<double>() > 0;
    parameter.put_sharded_gradient(any ? shard.to(parameter.shard().scalar_type()) : at::Tensor());
  }
  for (FsdpParam& parameter : parameters_) {
    if (!parameter.trainable()) {
      parameter.put_sharded_gradient({});
    }
  }
}

} // namespace tieshard
