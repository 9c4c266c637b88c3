#include "tieshard/runtime/state/full_tensor.h"

#include <ATen/ATen.h>

#include "tieshard/runtime/mesh/part_collectives.h"

namespace tieshard {

at::Tensor full_tensor(const DeviceMesh& mesh,
                       const ShardPlan& plan,
                       const FsdpParam& parameter,
                       const at::Tensor& local) {
  const at::NoGradGuard no_grad;
  if (parameter.replicated() || mesh.size() == 1) {
    return local.detach().clone();
  }
  CutTensor cut{.shard = local.detach().contiguous()};
  const at::Tensor whole = at::empty(parameter.spec().shape, local.options());
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    const ChunkRange range = plan.range(parameter.spec(), rank);
    cut.parts.push_back(whole.narrow(parameter.spec().dim, range.offset, range.size));
  }
  all_gather_parts(mesh, {cut}, parameter.fqn());
  return whole;
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
