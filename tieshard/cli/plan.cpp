#include "tieshard/cli/plan.h"

#include <optional>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/memory_text.h"
#include "tieshard/cli/model_view.h"
#include "tieshard/cli/plan_compare.h"
#include "tieshard/cli/plan_summary.h"
#include "tieshard/cli/plan_text.h"
#include "tieshard/cli/saved_as_model.h"
#include "tieshard/core/base/units.h"
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

InputError bad_limit(const std::string& flag,
                     const std::string& expected,
                     const std::string& got,
                     const char* example) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag has a value that cannot be used",
                     .where = flag,
                     .why = concat("expected ", expected, ", got ", got),
                     .fix = concat("write ", flag, " ", example)});
}

/// Bytes a second of "25GB/s", "25GB", or of bits: "200Gb/s", "200Gbit/s", "200Gbps". @throws InputError bad-flag
std::uint64_t bandwidth_flag(const std::string& text) {
  if (text.empty()) {
    return 0;
  }
  std::string size = text;
  for (const std::string_view end : {"/s", "ps"}) {
    if (size.ends_with(end)) {
      size.resize(size.size() - end.size());
    }
  }
  std::uint64_t divisor = 1;
  for (const std::string_view end : {"bits", "bit", "b"}) { // a small b is a bit, as networks are sold
    if (divisor == 1 && size.ends_with(end)) {
      size.replace(size.size() - end.size(), end.size(), "B");
      divisor = 8;
    }
  }
  const std::optional<std::uint64_t> units = size.find('B') == std::string::npos ? std::nullopt : parse_bytes(size);
  if (!units || *units / divisor == 0) {
    throw bad_limit("--bandwidth", "bytes or bits a second, with their unit", text, "25GB/s, or 200Gbit/s");
  }
  return *units / divisor;
}

std::uint64_t device_memory_flag(const std::string& text) {
  const std::uint64_t bytes = text.empty() ? 0 : size_flag("--device-memory", text);
  if (!text.empty() && bytes == 0) {
    throw bad_limit("--device-memory", "more than 0 bytes", text, "24GiB");
  }
  return bytes;
}

PlanLimits limits_of(const PlanOptions& options) {
  return {.device_bytes = device_memory_flag(options.device_memory), .bandwidth = bandwidth_flag(options.bandwidth)};
}

/// The choice that the flags make, and the model that it is made for; both of `view` and `step`.
struct Asked {
  PlanChoice choice{};
  ChoiceModel model{};
};

Asked asked_of(const ResolvedModel& view, const TrainingStep& step, DType dtype, const PlanOptions& options) {
  return {.choice = {.policy = options.shard.policy(),
                     .param_dtype = dtype,
                     .compute_dtype = step.compute_dtype,
                     .reshard_after_forward = step.reshard_after_forward},
          .model = {.table = &view.table,
                    .ties = &view.ties,
                    .ranks = options.ranks,
                    .plan = {.dims = declared_dims(options.shard.dims), .units = view.units()},
                    .sizes = activation_sizes(view.checkpoint.config()),
                    .step = step,
                    .replicas = options.replicas}};
}

std::vector<ChoiceCost> costs_of(const Asked& asked) {
  std::vector<ChoiceCost> costs;
  bool among_them = false;
  for (const PlanChoice& choice : all_choices()) {
    costs.push_back(cost_of(asked.model, choice));
    among_them = among_them || choice == asked.choice;
  }
  if (!among_them) {
    costs.insert(costs.begin(), cost_of(asked.model, asked.choice));
  }
  return costs;
}

/// Everything that run_plan shows.
struct Shown {
  const ResolvedModel& view;
  const ShardPlan& plan;
  const PlanSummary& summary;
  const TrainingStep& step;
  const TrainingPrediction& prediction;
  const Asked& asked;
  const PlanLimits& limits;
};

OrderedJson document_of(const Shown& shown, const PlanOptions& options, const std::vector<Diagnostic>& findings) {
  OrderedJson document =
      plan_document(shown.view, shown.plan, shown.summary, options.shard.shard_dim, shown.limits.bandwidth, findings);
  document["training"] = training_document(shown.view.checkpoint.config(), shown.step, shown.prediction);
  if (shown.limits.device_bytes > 0) {
    document["fit"] = to_json(fit_of(shown.asked.model, shown.asked.choice, shown.limits.device_bytes));
  }
  if (options.compare) {
    document["choices"] = choices_document(costs_of(shown.asked), shown.limits);
  }
  return document;
}

void print(const Shown& shown, const PlanOptions& options, const Stream& out) {
  print_plan(shown.view, shown.plan, shown.summary, options.shard.shard_dim, shown.limits.bandwidth, out);
  out.text << "\n";
  print_training_memory(shown.view.checkpoint.config(), shown.step, shown.prediction, out);
  if (shown.limits.device_bytes > 0) {
    print_fit(fit_of(shown.asked.model, shown.asked.choice, shown.limits.device_bytes), out);
  }
  if (options.compare) {
    out.text << "\n";
    print_choices(costs_of(shown.asked), shown.asked.choice, shown.limits, out);
  }
  if (options.all) {
    out.text << "\n";
    print_parameters(shown.plan, out);
  }
  out.text.flush();
}

} // namespace

int run_plan(const PlanOptions& options, const Console& console) {
  const PlanLimits limits = limits_of(options);
  const SavedAsModel source(options.directory, SavedPart::kHeaders);
  const ResolvedModel view = resolve_model(source.path(), options.open.options());
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
  const TrafficOptions traffic{.compute_dtype = step.compute_dtype,
                               .reshard_after_forward = step.reshard_after_forward,
                               .replicas = options.replicas};
  const PlanSummary summary = summarize(view.checkpoint, plan, ranks_per_host, traffic, options.load.sources());
  const TrainingPrediction prediction = predict(view, plan, step);
  std::vector<Diagnostic> findings = source.findings();
  findings.insert(findings.end(), view.findings.begin(), view.findings.end());
  findings.insert(findings.end(), summary.findings.begin(), summary.findings.end());
  const Asked asked = asked_of(view, step, dtype, options);
  const Shown shown{view, plan, summary, step, prediction, asked, limits};
  if (options.json) {
    print_json(console.out, document_of(shown, options, findings));
    return kExitSuccess;
  }
  print(shown, options, console.out);
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
  verb.add_option("--replicas", options.replicas, "Copies of the model (HSDP): their gradients are all_reduced")
      ->capture_default_str()
      ->check(whole_number(1, kMostRanks));
  verb.add_option("--bandwidth",
                  options.bandwidth,
                  "What a rank can receive, as 25GB/s or 200Gbit/s: the time of each step's exchange")
      ->type_name("SIZE/s");
  verb.add_option("--device-memory", options.device_memory, "Memory of a rank: does the peak fit, and what would")
      ->type_name("SIZE");
  verb.add_flag("--compare", options.compare, "Compare shard dims, precisions and what is kept after a forward");
}

} // namespace

void add_plan(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* verb = app.add_subcommand("plan", "Show what each rank will hold and read");
  verb->add_option("DIR",
                   options->directory,
                   "Checkpoint directory (config.json and safetensors files), a weights file, or a training checkpoint")
      ->required();
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
      "  tieshard plan smollm2/ --ranks 8 --compare --bandwidth 25GB/s --device-memory 24GiB\n"
      "  tieshard plan smollm2/ --ranks 2 --dim model.norm.weight=0 --json");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_plan(*options, console); }; });
}

} // namespace tieshard::cli
