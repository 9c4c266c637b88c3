#include "tieshard/runtime/train/unsharded.h"

#include <map>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/io/local_shards.h"
#include "tieshard/core/plan/read_plan.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/torch_dtype.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {
namespace {

void require_one_rank(const DeviceMesh& mesh) {
  if (mesh.size() != 1) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a model that is not sharded is whole on one rank",
                      .where = mesh.where(),
                      .why = concat("expected a mesh of 1 rank, got ", mesh.size()),
                      .fix = "shard it with parallelize(), or use one rank"});
  }
}

/// Copies every parameter's values from the files into the bytes that it has.
std::vector<Diagnostic> copy_values(const torch::nn::Module& module,
                                    const Checkpoint& checkpoint,
                                    const ShardPlan& plan,
                                    const LoadOptions& options) {
  const ReadPlan reads = build_read_plan(checkpoint, plan, 0, options.sources);
  const LocalShards loaded = load_local_shards(checkpoint,
                                               plan,
                                               reads,
                                               0,
                                               {.threads = options.threads,
                                                .read_buffer = options.read_buffer,
                                                .map = options.map,
                                                .check_values = options.check_values,
                                                .host_ram = options.host_ram});
  std::map<std::string, at::Tensor, std::less<>> parameters;
  for (const NamedTensor& named : named_parameters(module)) {
    parameters.emplace(named.fqn, named.tensor);
  }
  const at::NoGradGuard no_grad;
  for (const LocalShard& whole : loaded.shards) {
    if (whole.data != nullptr) {
      parameters.at(whole.fqn).copy_(at::from_blob(whole.data, whole.shape, to_torch(whole.dtype)));
    }
  }
  return loaded.ledger.findings;
}

} // namespace

UnshardedModel load_unsharded(const std::filesystem::path& directory,
                              const DeviceMesh& mesh,
                              const ParallelizeOptions& options,
                              Materialization materialization) {
  require_one_rank(mesh);
  ResolvedModel resolved = resolve_model(directory, options.resolve);
  const bool eager = materialization == Materialization::kEager;
  auto model =
      make_model(resolved.checkpoint.config(),
                 resolved.ties,
                 {.device = eager ? at::Device(at::kCPU) : at::Device(at::kMeta), .dtype = options.param_dtype});
  const ShardPlan plan = ShardPlan::build(parameter_table(*model), resolved.ties, 1, {.units = resolved.units()});
  std::vector<Diagnostic> findings = resolved.findings;
  const std::vector<Diagnostic> more =
      eager ? copy_values(*model, resolved.checkpoint, plan, options.load)
            : load_shards(*model, resolved.checkpoint, plan, mesh, options.load).findings;
  findings.insert(findings.end(), more.begin(), more.end());
  if (eager) {
    model->to(mesh.device());
    validate_shared_object(*model, resolved.ties);
  }
  return {.checkpoint = std::move(resolved.checkpoint), .model = std::move(model), .findings = std::move(findings)};
}

} // namespace tieshard
