#include "tieshard/runtime/fsdp/fsdp_state.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/fsdp/activation_checkpoint.h"
#include "tieshard/runtime/fsdp/post_backward_node.h"
#include "tieshard/runtime/fsdp/run_checks.h"
#include "tieshard/runtime/fsdp/sharded_mark.h"
#include "tieshard/runtime/fsdp/unit_ownership.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard {
namespace {

std::vector<at::Tensor> cast(const std::vector<at::Tensor>& tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> cast_tensors;
  for (const at::Tensor& tensor : tensors) {
    cast_tensors.push_back(tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor);
  }
  return cast_tensors;
}

std::vector<at::Tensor> cast_inputs(const MixedPrecisionPolicy& policy, const std::vector<at::Tensor>& inputs) {
  return policy.param_dtype && policy.cast_forward_inputs ? cast(inputs, *policy.param_dtype) : inputs;
}

} // namespace

FsdpState::FsdpState(torch::nn::Module& root,
                     const DeviceMesh& mesh,
                     ShardPlan plan,
                     const std::vector<UnitModule>& units,
                     std::vector<std::unique_ptr<FsdpParamGroup>> groups,
                     const FullyShardOptions& options,
                     std::vector<Diagnostic> findings)
    : root_(root),
      world_(mesh),
      mesh_(mesh.axis("dp_shard")),
      plan_(std::move(plan)),
      units_(units),
      groups_(std::move(groups)),
      rounds_(root, units, groups_),
      options_(options),
      findings_(std::move(findings)),
      root_is_unit_(units.front().module == &root) {}

at::Tensor FsdpState::run(torch::nn::Module& unit, const at::Tensor& input, const Forward& forward) {
  return run_tensors(unit,
                     {input},
                     [forward](const std::vector<at::Tensor>& inputs) {
                       return std::vector<at::Tensor>{forward(inputs.front())};
                     })
      .front();
}

std::vector<at::Tensor> FsdpState::run_tensors(torch::nn::Module& unit,
                                               const std::vector<at::Tensor>& inputs,
                                               const TensorsForward& forward) {
  FsdpParamGroup* const group = rounds_.find(unit);
  if (group == nullptr) {
    return forward(inputs);
  }
  const Running running(running_, unit, where(*group));
  enter_forward(unit, *group);
  return run_unit(unit, *group, inputs, forward);
}

void FsdpState::enter_forward(const torch::nn::Module& unit, FsdpParamGroup& group) {
  abandon_broken_backward();
  const bool begins = rounds_.enter(unit);
  if (is_root(group) && begins) {
    ran_.clear();
    order_.begin_forward();
  }
  ran_.insert(&unit);
  if (!begins) {
    return;
  }
  group.pre_forward();
  if (recomputes()) {
    return; // no forward of its own: it has no part in the order
  }
  for (FsdpParamGroup* next : order_.enter(group, options_.forward_prefetch)) {
    next->prefetch_forward();
  }
}

/// Frees what is whole for nothing: the unit whose forward failed, those that were gathered ahead, and those that wait
/// for more of their modules. Units around the failed one see the exception themselves; the outermost frees all, also
/// what reshard_after_forward keeps.
void FsdpState::abandon_forward(const FsdpParamGroup& failed) {
  const bool outermost = running_.size() == 1;
  for (const auto& group : groups_) {
    if (outermost || group.get() == &failed || rounds_.waits(*group) || rounds_.is_idle(*group, ran_)) {
      rounds_.abandon(*group);
      group->reshard();
    }
  }
}

/// Units that were gathered ahead and did not run, or not all of whose modules did, are freed again.
void FsdpState::leave_root_forward() {
  for (const auto& group : groups_) {
    if (rounds_.waits(*group) || rounds_.is_idle(*group, ran_)) {
      rounds_.abandon(*group);
      group->reshard();
    }
  }
  if (root_is_unit_ && !options_.allow_idle_units) {
    require_all_ran();
  }
}

std::vector<at::Tensor> FsdpState::run_unit(const torch::nn::Module& unit,
                                            FsdpParamGroup& group,
                                            const std::vector<at::Tensor>& inputs,
                                            const TensorsForward& forward) {
  AttachedInputs attached;
  std::vector<at::Tensor> outputs;
  try {
    attached =
        attach_post_backward(cast_inputs(group.mp_policy(), inputs), shared_from_this(), rounds_.backward(group));
    const std::vector<std::uint32_t> before = versions(attached.inputs);
    outputs = compute(group, attached.inputs, forward);
    require_unchanged(attached.inputs, before, group.activation_checkpointing(), where(group));
    require_own_outputs(outputs, group.parameters(), where(group));
  } catch (...) {
    abandon_forward(group);
    throw;
  }
  const bool has_backward = watch_outputs(group, outputs);
  if (has_backward) {
    rounds_.backward(group)->add(attached.has_node);
  }
  if (rounds_.leave(unit, has_backward)) {
    if (rounds_.has_backward(group) && !recomputes()) {
      order_.leave(group);
    }
    group.post_forward(rounds_.has_backward(group));
    if (is_root(group)) {
      leave_root_forward();
    }
  }
  return outputs;
}

/// The backward of the unit begins with the first gradient of any of them. @returns whether it has one
bool FsdpState::watch_outputs(FsdpParamGroup& group, const std::vector<at::Tensor>& outputs) {
  bool has_backward = false;
  for (const at::Tensor& output : outputs) {
    if (at::GradMode::is_enabled() && output.defined() && output.requires_grad()) {
      has_backward = true;
      output.register_hook([state = shared_from_this(), &group](const at::Tensor&) { state->pre_backward(group); });
    }
  }
  return has_backward;
}

std::vector<at::Tensor> FsdpState::compute(FsdpParamGroup& group,
                                           const std::vector<at::Tensor>& inputs,
                                           const TensorsForward& forward) {
  const std::vector<at::Tensor> outputs =
      group.activation_checkpointing()
          ? run_checkpointed(
                inputs, forward, group.trainable(), [state = shared_from_this()] { return state->hold_recomputing(); })
          : forward(inputs);
  const std::optional<at::ScalarType> dtype = group.mp_policy().output_dtype;
  return dtype ? cast(outputs, *dtype) : outputs;
}

/// What ran on shards ran wrong, mostly without an error of its own.
void FsdpState::require_all_ran() const {
  std::string idle;
  for (const auto& group : groups_) {
    for (const std::string& name : rounds_.missing(*group, ran_)) {
      idle += group->parameters().empty() ? "" : concat(idle.empty() ? "" : ", ", name);
    }
  }
  if (!idle.empty()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a unit did not run in a forward of the root",
                      .where = concat(mesh_.where(), ", ", idle),
                      .why = "its parameters were shards all the time; if its module was called, it computed with them",
                      .fix =
                          "call the module through state->run(module, input, forward); set allow_idle_units if it is "
                          "indeed left out"});
  }
}

void FsdpState::pre_backward(FsdpParamGroup& group) {
  abandon_broken_backward();
  if (!in_backward_) {
    in_backward_ = true;
    const auto pass = std::make_shared<const BackwardPass>();
    backward_pass_ = pass;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [state = shared_from_this(), pass] { state->finish_backward(); });
  }
  group.pre_backward();
  if (recomputing_ == 0) {
    for (FsdpParamGroup* next : order_.backward_after(group, options_.backward_prefetch)) {
      next->prefetch();
    }
  }
}

void FsdpState::finish_backward() {
  in_backward_ = false;
  for (const auto& group : groups_) {
    group->end_of_pass();
    if (last_backward_) {
      rounds_.abandon(*group);
      group->reshard();
    }
  }
}

void FsdpState::set_requires_gradient_sync(bool sync) {
  gradient_sync_ = sync;
  update_gradient_sync();
}

void FsdpState::set_is_last_backward(bool last) {
  last_backward_ = last;
  update_gradient_sync();
}

void FsdpState::update_gradient_sync() {
  for (const auto& group : groups_) {
    group->set_gradient_sync(gradient_sync_, /*keep_whole=*/!last_backward_);
  }
}

void FsdpState::require_reduced_gradients() const {
  for (const auto& group : groups_) {
    if (group->has_unreduced_gradients()) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "gradients are kept that were not reduced",
                        .where = where(*group),
                        .why = "no backward pass with gradient sync came after those without",
                        .fix = "call set_requires_gradient_sync(true) before the last backward pass of a step, or "
                               "drop_unreduced_gradients() to give them up"});
    }
  }
}

/// A backward pass inside a backward pass has a number of its own, but belongs to the outer one.
std::shared_ptr<void> FsdpState::hold_recomputing() {
  ++recomputing_;
  return {this, [state = shared_from_this()](void*) { --state->recomputing_; }};
}

/// Autograd drops the callback, and the pass with it, when an exception ends a pass. One that runs inside another (a
/// checkpoint's) leaves the outer one's alone.
void FsdpState::abandon_broken_backward() {
  if (!in_backward_ || !backward_pass_.expired()) {
    return;
  }
  in_backward_ = false;
  for (const auto& group : groups_) {
    group->abandon_backward();
  }
}

bool FsdpState::recomputes() const {
  return recomputing_ > 0 || torch::autograd::get_current_graph_task_id() != kNoPass;
}

std::string FsdpState::where(const FsdpParamGroup& group) const {
  return concat(mesh_.where(), group.name().empty() ? ", the root unit" : concat(", unit \"", group.name(), "\""));
}

void FsdpState::drop_unreduced_gradients() {
  for (const auto& group : groups_) {
    group->drop_kept_gradients();
  }
}

void FsdpState::manage_added(const ParameterTable& added) {
  reshard();
  ShardPlan extended = plan_.extended(added, options_.shard_dim);
  const UnitOwnership ownership(root_, units_);
  std::map<std::string, at::Tensor> tensors;
  for (const NamedTensor& named : named_parameters(root_)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  for (const ParameterInfo& info : added) { // all are looked at before anything is changed
    if (!tensors.contains(info.fqn) || !ownership.owner({info.fqn})) {
      throw UsageError(
          {.code = tensors.contains(info.fqn) ? Code::kWrongState : Code::kUnknownParameter,
           .what = "a parameter cannot be taken into management",
           .where = info.fqn,
           .why = tensors.contains(info.fqn) ? "no unit holds it" : "the module has no parameter of this name",
           .fix = "register it in a module inside one of fully_shard's units first"});
    }
  }
  for (const ParameterInfo& info : added) {
    const ShardedParameter& spec = *extended.find(info.fqn);
    FsdpParamGroup& group = *groups_[*ownership.owner({info.fqn})];
    const at::Tensor& tensor = tensors.at(info.fqn);
    const bool converted = tensor.is_floating_point() && group.mp_policy().param_dtype;
    const at::ScalarType compute = converted ? *group.mp_policy().param_dtype : tensor.scalar_type();
    group.add(FsdpParam(extended, spec, tensor, mesh_.rank(), compute, options_.offload_policy));
    mark_sharded(tensor);
  }
  plan_ = std::move(extended);
}

void FsdpState::reshard() {
  abandon_broken_backward();
  for (const auto& group : groups_) {
    rounds_.abandon(*group);
    group->reshard();
  }
}

void FsdpState::unshard() {
  for (const auto& group : groups_) {
    group->unshard();
  }
}

std::vector<const FsdpParam*> FsdpState::managed() const {
  std::map<std::string, const FsdpParam*> by_name;
  for (const auto& group : groups_) {
    for (const FsdpParam& parameter : group->parameters()) {
      by_name.emplace(parameter.fqn(), &parameter);
    }
  }
  std::vector<const FsdpParam*> ordered;
  for (const ShardedParameter& parameter : plan_.parameters()) {
    if (const auto found = by_name.find(parameter.fqn); found != by_name.end()) {
      ordered.push_back(found->second);
    }
  }
  return ordered;
}

} // namespace tieshard
