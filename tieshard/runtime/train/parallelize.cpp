#include "tieshard/runtime/train/parallelize.h"

#include <map>
#include <optional>
#include <utility>

#include "tieshard/core/adapters/adapter_file.h"
#include "tieshard/core/optim/frozen_parameters.h"
#include "tieshard/runtime/adapters/adapter_weights.h"
#include "tieshard/runtime/adapters/lora.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {
namespace {

void append(std::vector<Diagnostic>& findings, const std::vector<Diagnostic>& more) {
  findings.insert(findings.end(), more.begin(), more.end());
}

/// The adapter that the caller wants, and its file where it has one.
struct Adapter {
  std::optional<AdapterFile> file{};
  LoraPlan plan;
};

Adapter plan_adapter(const AdapterOptions& options, const ResolvedModel& model) {
  Adapter adapter;
  LoraConfig config = options.config;
  if (!options.directory.empty()) {
    adapter.file.emplace(AdapterFile::open(options.directory));
    config = adapter.file->config();
  }
  config.tied = options.tied.value_or(config.tied);
  config.base_model = model.checkpoint.directory().string();
  adapter.plan = plan_lora(config, adaptable_modules(model), model.table, model.ties);
  if (adapter.file) {
    adapter.file->match(adapter.plan); // before the base is read
  }
  return adapter;
}

/// Takes what `patterns` match out of training.
void freeze(const torch::nn::Module& model, const std::vector<std::string>& patterns) {
  std::vector<at::Tensor> tensors;
  std::vector<GroupCandidate> candidates;
  std::map<const c10::TensorImpl*, std::size_t> place;
  for (const NamedTensor& named : named_parameters(model)) {
    const auto [found, fresh] = place.emplace(named.tensor.unsafeGetTensorImpl(), tensors.size());
    if (fresh) {
      tensors.push_back(named.tensor);
      candidates.push_back({.names = {}, .dims = static_cast<std::size_t>(named.tensor.dim())});
    }
    candidates[found->second].names.push_back(named.fqn);
  }
  const std::vector<bool> frozen = frozen_parameters(patterns, candidates);
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    if (frozen[index]) {
      tensors[index].set_requires_grad(false);
    }
  }
}

/// The initial values of A and B are asked for by the adapter, not by a flag: no note of them is needed.
LoadLedger load_base(LanguageModel& model,
                     const ResolvedModel& resolved,
                     const ShardPlan& plan,
                     const DeviceMesh& mesh,
                     LoadOptions options,
                     const std::optional<Adapter>& adapter) {
  const bool asked = !options.sources.inits.empty();
  const std::vector<NamedInit> inits = adapter ? lora_inits(adapter->plan) : std::vector<NamedInit>();
  options.sources.inits.insert(options.sources.inits.end(), inits.begin(), inits.end());
  LoadLedger ledger = load_shards(model, resolved.checkpoint, plan, mesh, options);
  if (adapter && !asked) {
    std::erase_if(ledger.findings, [](const Diagnostic& finding) { return finding.code == Code::kInitialised; });
  }
  if (adapter && adapter->file) {
    load_adapter(model, *adapter->file, adapter->plan, plan, mesh);
  }
  return ledger;
}

} // namespace

ParallelModel parallelize(const std::filesystem::path& directory,
                          const DeviceMesh& mesh,
                          const ParallelizeOptions& options) {
  std::optional<ResolvedModel> resolved;
  ShardPlan plan;
  std::shared_ptr<LanguageModel> model;
  std::optional<Adapter> adapter;
  agree(mesh, "plan", [&] {
    resolved.emplace(resolve_model(directory, options.resolve));
    model =
        make_model(resolved->checkpoint.config(), resolved->ties, {.device = at::kMeta, .dtype = options.param_dtype});
    freeze(*model, options.freeze);
    if (options.adapter) {
      adapter.emplace(plan_adapter(*options.adapter, *resolved));
      add_lora(*model, adapter->plan, options.adapter->dtype);
    }
    plan = ShardPlan::build(parameter_table(*model),
                            resolved->ties,
                            mesh.axis("dp_shard").size(),
                            {.policy = options.shard_dim, .dims = options.shard_dims, .units = resolved->units()});
  });
  LoadLedger ledger = load_base(*model, *resolved, plan, mesh, options.load, adapter);
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
          .lora = adapter ? std::optional(std::move(adapter->plan)) : std::nullopt,
          .findings = std::move(findings)};
}

} // namespace tieshard
