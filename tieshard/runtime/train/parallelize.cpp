#include "tieshard/runtime/train/parallelize.h"

#include <optional>
#include <utility>

#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {
namespace {

void append(std::vector<Diagnostic>& findings, const std::vector<Diagnostic>& more) {
  findings.insert(findings.end(), more.begin(), more.end());
}

} // namespace

ParallelModel parallelize(const std::filesystem::path& directory,
                          const DeviceMesh& mesh,
                          const ParallelizeOptions& options) {
  std::optional<ResolvedModel> resolved;
  ShardPlan plan;
  std::shared_ptr<CausalLm> model;
  agree(mesh, "plan", [&] {
    resolved.emplace(resolve_model(directory, options.resolve));
    model =
        make_model(resolved->checkpoint.config(), resolved->ties, {.device = at::kMeta, .dtype = options.param_dtype});
    plan = ShardPlan::build(parameter_table(*model),
                            resolved->ties,
                            mesh.axis("dp_shard").size(),
                            {.policy = options.shard_dim, .dims = options.shard_dims, .units = resolved->units()});
  });
  LoadLedger ledger = load_shards(*model, resolved->checkpoint, plan, mesh, options.load);
  std::shared_ptr<FsdpState> state;
  agree(mesh, "fully_shard", [&] {
    state = fully_shard(*model, plan, mesh, options.fsdp);
    validate_shared_object(*model, resolved->ties);
  });
  std::vector<Diagnostic> findings = resolved->findings;
  append(findings, ledger.findings);
  return {.checkpoint = std::move(resolved->checkpoint),
          .ties = std::move(resolved->ties),
          .plan = std::move(plan),
          .model = std::move(model),
          .state = std::move(state),
          .ledger = std::move(ledger),
          .findings = std::move(findings)};
}

} // namespace tieshard
