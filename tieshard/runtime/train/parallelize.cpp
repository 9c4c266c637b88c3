#include "tieshard/runtime/train/parallelize.h"

#include <optional>
#include <utility>

#include "tieshard/core/families/family.h"
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
  std::optional<Checkpoint> checkpoint;
  TieRegistry ties;
  ShardPlan plan;
  std::shared_ptr<CausalLm> model;
  agree(mesh, "plan", [&] {
    checkpoint.emplace(Checkpoint::open(directory));
    const HfConfig& config = checkpoint->config();
    const Family& family = require_family(config);
    ties = TieRegistry::of(*checkpoint, family.table(config), {.explicit_ties = options.explicit_ties});
    model = make_model(config, ties, {.device = at::kMeta, .dtype = options.param_dtype});
    plan = ShardPlan::build(parameter_table(*model),
                            ties,
                            mesh.size(),
                            {.policy = options.shard_dim, .dims = {}, .units = family.units(config)});
  });
  LoadLedger ledger = load_shards(*model, *checkpoint, plan, mesh, options.load);
  std::shared_ptr<FsdpState> state;
  agree(mesh, "fully_shard", [&] {
    state = fully_shard(*model, plan, mesh, options.fsdp);
    validate_shared_object(*model, ties);
  });
  std::vector<Diagnostic> findings = checkpoint->findings();
  append(findings, ties.findings());
  append(findings, ledger.findings);
  return {.checkpoint = std::move(*checkpoint),
          .ties = std::move(ties),
          .plan = std::move(plan),
          .model = std::move(model),
          .state = std::move(state),
          .ledger = std::move(ledger),
          .findings = std::move(findings)};
}

} // namespace tieshard
