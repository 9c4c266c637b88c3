#include "tieshard/runtime/state/full_tensor.h"

#include <ATen/ATen.h>

#include "tieshard/runtime/mesh/collectives.h"

namespace tieshard {

at::Tensor full_tensor(const DeviceMesh& mesh,
                       const ShardPlan& plan,
                       const FsdpParam& parameter,
                       const at::Tensor& local) {
  const at::NoGradGuard no_grad;
  if (parameter.replicated() || mesh.size() == 1) {
    return local.detach().clone();
  }
  const std::int64_t chunk = parameter.chunk_numel();
  at::Tensor mine = at::zeros({chunk}, local.options());
  mine.narrow(0, 0, local.numel()).copy_(local.reshape({-1}));
  at::Tensor all = at::empty({mesh.size() * chunk}, local.options());
  all_gather_into_tensor(mesh, all, mine);
  std::vector<at::Tensor> parts;
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    const Shape shape = plan.local_shape(parameter.spec(), rank);
    parts.push_back(all.narrow(0, rank * chunk, numel(shape)).view(shape));
  }
  return at::cat(parts, parameter.spec().dim);
}

std::vector<NamedTensor> full_state_dict(const FsdpState& state) {
  std::vector<NamedTensor> whole;
  for (const FsdpParam* parameter : state.managed()) {
    whole.push_back({parameter->fqn(), full_tensor(state.mesh(), state.plan(), *parameter, parameter->shard())});
  }
  return whole;
}

std::vector<NamedTensor> sharded_state_dict(const FsdpState& state) {
  std::vector<NamedTensor> shards;
  for (const FsdpParam* parameter : state.managed()) {
    shards.push_back({parameter->fqn(), parameter->shard()});
  }
  return shards;
}

} // namespace tieshard
