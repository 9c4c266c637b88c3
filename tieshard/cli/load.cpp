#include "tieshard/cli/load.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/cli/load_text.h"
#include "tieshard/cli/rank_processes.h"
#include "tieshard/cli/saved_as_model.h"
#include "tieshard/cli/shard_files.h"
#include "tieshard/core/base/process_memory.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/doctor/finding_list.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/core/plan/memory_dtype.h"
#include "tieshard/core/plan/read_plan.h"

namespace tieshard::cli {
namespace {

constexpr std::int64_t kMostProcesses = 1024;
constexpr std::int64_t kMostValues = 1'000'000'000; ///< of one part that --values shows

std::vector<std::int64_t> ranks_to_load(const LoadVerbOptions& options) {
  const auto refuse = [](const std::string& flag, const std::string& why, const std::string& fix) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a command line flag has a value that cannot be used",
                      .where = flag,
                      .why = why,
                      .fix = fix});
  };
  if (options.values > 0 && !options.json) {
    refuse("--values", "expected it with --json, which alone shows values, got --values alone", "add --json");
  }
  if (options.rank && (*options.rank < 0 || *options.rank >= options.ranks)) {
    refuse("--rank", concat("expected 0 to ", options.ranks - 1, ", got ", *options.rank), "name a rank of --ranks");
  }
  if (options.rank) {
    return {*options.rank};
  }
  if (options.ranks > kMostProcesses) {
    refuse("--ranks",
           concat("expected at most ", kMostProcesses, " processes on one host, got ", options.ranks),
           "load one of the ranks with --rank");
  }
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(options.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

ShardPlan make_plan(const ResolvedModel& model, const LoadVerbOptions& options) {
  ParameterTable table = model.table;
  set_memory_dtypes(table, model.checkpoint, model.ties, options.shard.dtype());
  try {
    return ShardPlan::build(
        table,
        model.ties,
        options.ranks,
        {.policy = options.shard.policy(), .dims = declared_dims(options.shard.dims), .units = model.units()});
  } catch (const UsageError& error) {
    // The values came from the user's flags, not from a caller of the library.
    throw InputError(error.diagnostic());
  }
}

int threads_of_each(const LoadVerbOptions& options, std::size_t processes) {
  constexpr unsigned kMost = 8;
  const unsigned share = std::thread::hardware_concurrency() / static_cast<unsigned>(processes);
  return options.threads > 0 ? options.threads : static_cast<int>(std::clamp(share, 1U, kMost));
}

/// As the first use in training would: a page that is only mapped is not there yet.
void touch(const LocalShards& loaded) {
  constexpr std::uint64_t kPage = 4096;
  for (const LocalShard& shard : loaded.shards) {
    for (std::uint64_t at = 0; at < shard.bytes; at += kPage) {
      static_cast<void>(*static_cast<const volatile std::byte*>(shard.data + at));
    }
  }
}

/// The flags, read once, and what every rank's process shares.
struct Load {
  const LoadVerbOptions& options;
  ResolvedModel model;
  ShardPlan plan;
  WeightSources sources; ///< points into `model`
  LocalShardOptions local;
  std::unique_ptr<ShardDirectory> out{};

  OrderedJson run(std::int64_t rank) const {
    const std::uint64_t before = resident_bytes();
    const auto start = std::chrono::steady_clock::now();
    const ReadPlan reads = build_read_plan(sources, plan, rank);
    const LocalShards loaded = load_local_shards(model.checkpoint, plan, reads, rank, local);
    touch(loaded);
    require_mappings_intact(); // what was lost while it was touched reads as zeros
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::uint64_t peak = peak_resident_bytes();
    if (out) {
      out->write(loaded, plan, rank);
    }
    return rank_document(loaded,
                         plan,
                         {.rank = rank, .seconds = seconds.count(), .peak_bytes = peak - std::min(before, peak)},
                         options.values);
  }
};

std::vector<Diagnostic> findings_of(const Load& load, const std::vector<OrderedJson>& ranks) {
  FindingList findings;
  findings.add(load.model.findings);
  findings.add(load.sources.findings);
  for (const OrderedJson& rank : ranks) {
    for (const OrderedJson& finding : rank["findings"]) {
      findings.add(diagnostic_from(finding));
    }
  }
  return findings.sorted();
}

/// Says each failure once; gives the status of the first.
int report_failures(const std::vector<RankFailure>& failures, std::int64_t ranks, const Console& console) {
  for (const RankFailure& failure : failures) {
    std::vector<std::string> names;
    for (const std::int64_t rank : failure.ranks) {
      names.push_back(std::to_string(rank));
    }
    Diagnostic diagnostic = failure.diagnostic;
    const std::string where = concat("rank ", format_names(names), " of ", ranks);
    diagnostic.where = diagnostic.where.empty() ? where : concat(where, ": ", diagnostic.where);
    print_diagnostic(console.err, diagnostic);
  }
  return failures.front().status;
}

} // namespace

int run_load(const LoadVerbOptions& options, const Console& console) {
  const std::vector<std::int64_t> ranks = ranks_to_load(options);
  LocalShardOptions local = options.load.options();
  local.threads = threads_of_each(options, ranks.size());
  const WeightSourceOptions source_options = options.load.sources();
  const SavedAsModel source(options.directory, SavedPart::kValues);
  ResolvedModel model = resolve_model(source.path(), options.open.options());
  ShardPlan plan = make_plan(model, options);
  Load load{
      .options = options, .model = std::move(model), .plan = std::move(plan), .sources = {}, .local = std::move(local)};
  load.sources = find_weight_sources(load.model.checkpoint, load.plan, source_options);
  if (!options.out.empty()) {
    load.out = std::make_unique<ShardDirectory>(options.out);
  }
  RankAnswers result = run_rank_processes(ranks, [&](std::int64_t rank) { return load.run(rank); });
  if (!result.failures.empty()) {
    return report_failures(result.failures, options.ranks, console);
  }
  if (load.out) {
    load.out->publish();
  }
  std::vector<Diagnostic> findings = findings_of(load, result.answers);
  findings.insert(findings.begin(), source.findings().begin(), source.findings().end());
  const LoadAccount account{.model = load.model,
                            .plan = load.plan,
                            .shard_dim = options.shard.shard_dim,
                            .unused = load.sources.unused,
                            .findings = std::move(findings),
                            .ranks = std::move(result.answers)};
  if (options.json) {
    print_json(console.out, load_document(account));
    return kExitSuccess;
  }
  print_load(account, console.out);
  console.out.text.flush();
  print_findings(console.err, account.findings);
  return kExitSuccess;
}

void add_load(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<LoadVerbOptions>();
  CLI::App* verb = app.add_subcommand("load", "Load a checkpoint as training would, and give account of every element");
  verb->add_option("DIR",
                   options->directory,
                   "Checkpoint directory (config.json and safetensors files), a weights file, or a training checkpoint "
                   "(which is put together in TMPDIR first)")
      ->required();
  add_ranks(*verb, options->ranks);
  verb->add_option("--rank", options->rank, "Load this rank only (default: all, a process each)")
      ->type_name("R")
      ->check(whole_number(0, kMostRanks - 1));
  add_shard_flags(*verb, options->shard);
  add_open_flags(*verb, options->open);
  add_load_flags(*verb, options->load);
  verb->add_option("--threads", options->threads, "Threads of each rank (default: the processors shared, at most 8)")
      ->type_name("N")
      ->check(whole_number(1, 1024).description("from 1 to 1024"));
  verb->add_option("--out", options->out, "Write the parts as rank-00000-of-00002.safetensors here; must not exist")
      ->type_name("DIR");
  verb->add_option("--values", options->values, "With --json: the first K values of each part")
      ->type_name("K")
      ->check(whole_number(0, kMostValues));
  verb->add_flag("--json", options->json, "Print JSON: findings, ties and the ledger of each rank");
  verb->footer(
      "Examples:\n"
      "  tieshard load smollm2/ --ranks 2\n"
      "  tieshard load smollm2/ --ranks 8 --rank 3 --shard-dim first --param-dtype float32\n"
      "  tieshard load smollm2/ --ranks 2 --out shards/\n"
      "  tieshard load smollm2/ --ranks 1 --json --values 4 | jq '.per_rank[0].ledger[0]'");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_load(*options, console); }; });
}

} // namespace tieshard::cli
