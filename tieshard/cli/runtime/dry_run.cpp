#include "tieshard/cli/runtime/dry_run.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tieshard/core/adapters/adapter_file.h"
#include "tieshard/core/adapters/lora_plan.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/optim/frozen_parameters.h"
#include "tieshard/core/ties/resolved_model.h"
#include "tieshard/runtime/train/build_optimizer.h"
#include "tieshard/runtime/train/run_directory.h"
#include "tieshard/runtime/train/trainer.h"

namespace tieshard::cli {
namespace {

/// The adapter that would be trained; nothing where the whole model is.
std::optional<LoraPlan> plan_adapter(const TrainConfig& config, const ResolvedModel& model) {
  if (!config.adapter) {
    return std::nullopt;
  }
  std::optional<AdapterFile> file;
  LoraConfig lora = config.adapter->config;
  if (!config.adapter->directory.empty()) {
    file.emplace(AdapterFile::open(config.adapter->directory));
    lora = file->config();
  }
  lora.tied = config.adapter->tied.value_or(lora.tied);
  LoraPlan plan = plan_lora(lora, adaptable_modules(model), model.table, model.ties);
  if (file) {
    file->match(plan);
  }
  return plan;
}

/// @throws InputError what frozen_parameters throws
std::vector<GroupCandidate> without_frozen(const TrainConfig& config, std::vector<GroupCandidate> candidates) {
  const std::vector<bool> frozen = frozen_parameters(config.freeze, candidates);
  std::vector<GroupCandidate> trained;
  for (std::size_t index = 0; index < candidates.size(); ++index) {
    if (!frozen[index]) {
      trained.push_back(std::move(candidates[index]));
    }
  }
  return trained;
}

/// What the optimizer's groups choose from.
std::vector<GroupCandidate> trained_parameters(const TrainConfig& config,
                                               const ResolvedModel& model,
                                               const std::optional<LoraPlan>& adapter) {
  std::vector<GroupCandidate> candidates;
  if (adapter) {
    for (const LoraTarget& target : adapter->targets) {
      candidates.push_back({.names = {target.a()}, .dims = 2});
      candidates.push_back({.names = {target.b()}, .dims = 2});
    }
    for (const SavedParameter& saved : adapter->saved) {
      candidates.push_back({.names = saved.names, .dims = saved.shape.size()});
    }
    return candidates;
  }
  std::set<std::string> seen;
  for (const ParameterInfo& parameter : model.table) {
    if (!seen.insert(parameter.fqn).second) {
      continue; // an alias of one before
    }
    GroupCandidate candidate{.names = {parameter.fqn}, .dims = parameter.shape.size()};
    for (const TieGroup& group : model.ties.groups()) {
      for (const TieAlias& alias : group.aliases) {
        if (group.canonical == parameter.fqn && seen.insert(alias.name).second) {
          candidate.names.push_back(alias.name);
        }
      }
    }
    candidates.push_back(std::move(candidate));
  }
  return config.freeze.empty() ? candidates : without_frozen(config, std::move(candidates));
}

void show_freeze(const TrainConfig& config, const Console& console) {
  if (!config.freeze.empty()) {
    console.out.text << concat(
        "freeze  ", config.freeze.size(), " patterns; the memory below is that of training everything\n");
  }
}

void show_adapter(const LoraPlan& adapter, const Console& console) {
  console.out.text << concat("lora    ",
                             adapter.targets.size(),
                             " modules and ",
                             adapter.saved.size(),
                             " whole parameters are trained; the memory below is that of training everything\n");
}

} // namespace

void show_data(const Console& console, const std::string& flag, const TokenData& data) {
  console.out.text << concat(flag == "--data" ? "data    " : "eval    ", data.description(), "\n");
  console.out.text.flush();
}

int dry_run(const TrainConfig& config, std::int64_t ranks, const PlanOptions& plan, const Console& console) {
  RunData data = RunData::open(config);
  show_data(console, "--data", data.train);
  data.train.batch_from(0, config.batch, 0); // tokens outside of the vocabulary are found by reading
  if (data.eval) {
    show_data(console, "--eval-data", *data.eval);
  }
  lr_schedule_of(config, ranks);
  const auto checkpoint = check_run_directory(config);
  console.out.text << concat("out     ",
                             config.out.string(),
                             checkpoint ? concat(": would go on from ", checkpoint->string()) : ": can be written",
                             "\n");
  const ResolvedModel model = resolve_model(config.model, config.resolve);
  const std::optional<LoraPlan> adapter = plan_adapter(config, model);
  assign_param_groups(config.param_groups, trained_parameters(config, model, adapter));
  if (adapter) {
    show_adapter(*adapter, console);
  }
  show_freeze(config, console);
  console.out.text << concat("steps   ",
                             format_count(config.steps),
                             " of ",
                             format_count(config.tokens_of_step(ranks)),
                             " tokens on ",
                             ranks,
                             ranks == 1 ? " rank\n\n" : " ranks\n\n");
  const int status = run_plan(plan, console);
  console.out.text << "\ndry run: nothing was started, loaded or written\n";
  return status;
}

} // namespace tieshard::cli
