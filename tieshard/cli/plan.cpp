#include "tieshard/cli/plan.h"

#include <optional>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/memory_text.h"
#include "tieshard/cli/model_view.h"
#include "tieshard/cli/plan_summary.h"
#include "tieshard/cli/plan_text.h"
#include "tieshard/core/families/activation_sizes.h"

namespace tieshard::cli {
namespace {

ShardPlan build(const ResolvedModel& view, const ParameterTable& table, const PlanOptions& options) {
  const ShardPlanOptions plan_options{
      .policy = options.shard.policy(), .dims = declared_dims(options.shard.dims), .units = view.units()};
  try {
    return ShardPlan::build(table, view.ties, options.ranks, plan_options);
  } catch (const UsageError& error) {
    // The values came from the user's flags, not from a caller of the library.
    throw InputError(error.diagnostic());
  }
}

/// Without activations where nobody knows what a forward keeps.
TrainingPrediction predict(const ResolvedModel& view, const ShardPlan& plan, const TrainingStep& step) {
  const HfConfig& config = view.checkpoint.config();
  const std::optional<ActivationSizes> all = activation_sizes(config);
  const std::optional<ActivationSizes> sizes = all ? all : sizes_without_activations(config);
  if (!sizes) {
    return {};
  }
  return {.memory = predict_training_memory(plan, *sizes, step), .with_activations = all.has_value()};
}

} // namespace

int run_plan(const PlanOptions& options, const Console& console) {
  const ResolvedModel view = resolve_model(options.directory, options.open.options());
  ParameterTable table = view.table;
  const DType dtype = dtype_flag("--param-dtype", options.param_dtype);
  TrainingStep step = options.step;
  step.compute_dtype = options.compute_dtype.empty() ? dtype : dtype_flag("--compute-dtype", options.compute_dtype);
  step.reshard_after_forward = options.reshard_after_forward == "true";
  for (ParameterInfo& parameter : table) {
    parameter.dtype = dtype;
  }
  const ShardPlan plan = build(view, table, options);
  require_room(plan, 0, options.load.options()); // rank 0 has the largest parts
  const std::int64_t ranks_per_host = options.ranks_per_host == 0 ? options.ranks : options.ranks_per_host;
  const PlanSummary summary = summarize(view.checkpoint, plan, ranks_per_host, options.load.sources());
  const TrainingPrediction prediction = predict(view, plan, step);
  std::vector<Diagnostic> findings = view.findings;
  findings.insert(findings.end(), summary.findings.begin(), summary.findings.end());
  if (options.json) {
    OrderedJson document = plan_document(view, plan, summary, options.shard.shard_dim, findings);
    document["training"] = training_document(view.checkpoint.config(), step, prediction);
    print_json(console.out, document);
    return kExitSuccess;
  }
  print_plan(view, plan, summary, options.shard.shard_dim, console.out);
  console.out.text << "\n";
  print_training_memory(view.checkpoint.config(), step, prediction, console.out);
  if (options.all) {
    console.out.text << "\n";
    print_parameters(plan, console.out);
  }
  console.out.text.flush();
  print_findings(console.err, findings);
  return kExitSuccess;
}

namespace {

/// Those of train that its memory depends on.
void add_step_flags(CLI::App& verb, PlanOptions& options) {
  verb.add_option("--seq", options.step.sequence, "Tokens of a sequence, for the peak while training")
      ->capture_default_str()
      ->check(whole_number(2, 100'000'000));
  verb.add_option("--batch", options.step.batch, "Sequences of each rank in a step, for the peak while training")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000));
  verb.add_option("--compute-dtype", options.compute_dtype, "Of the unsharded parameters and activations [param-dtype]")
      ->type_name("DTYPE");
  verb.add_option("--reshard-after-forward",
                  options.reshard_after_forward,
                  "Of a layer's whole parameters: true frees them, false keeps them for the backward")
      ->capture_default_str()
      ->check(one_of({"true", "false"}));
}

} // namespace

void add_plan(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* verb = app.add_subcommand("plan", "Show what each rank will hold and read");
  verb->add_option("DIR", options->directory, "Checkpoint directory (config.json and safetensors files), or one weights file")->required();
  verb->add_option("--ranks", options->ranks, "Ranks that share one copy of the model")
      ->type_name("N")
      ->required()
      ->check(whole_number(1, kMostRanks).description("from 1 to 65536"));
  verb->add_option("--ranks-per-host",
                   options->ranks_per_host,
                   "Ranks that share a host and its page cache (default: all): what each host reads")
      ->type_name("N")
      ->check(whole_number(1, kMostRanks).description("from 1 to 65536"));
  add_shard_dim_flags(*verb, options->shard);
  verb->add_option("--param-dtype",
                   options->param_dtype,
                   "Dtype of parameters and gradients (default float32); AdamW's moments are float32 at least")
      ->type_name("DTYPE");
  add_step_flags(*verb, *options);
  add_open_flags(*verb, options->open);
  add_load_flags(*verb, options->load);
  verb->add_flag("--all", options->all, "List every parameter with its dimension and parts");
  verb->add_flag(
      "--json", options->json, "Print JSON: parameters with parts, units, bytes of each rank and host, ties, training");
  verb->footer(
      "Examples:\n"
      "  tieshard plan smollm2/ --ranks 8\n"
      "  tieshard plan smollm2/ --ranks 64 --ranks-per-host 8\n"
      "  tieshard plan smollm2/ --ranks 3 --shard-dim first --param-dtype bfloat16\n"
      "  tieshard plan smollm2/ --ranks 8 --seq 2048 --batch 4 --compute-dtype bfloat16\n"
      "  tieshard plan smollm2/ --ranks 2 --dim model.norm.weight=0 --json");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_plan(*options, console); }; });
}

} // namespace tieshard::cli
