#include "tieshard/cli/runtime/train_verb.h"

#include <charconv>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include <CLI/App.hpp>
#include <signal.h>

#include "tieshard/cli/config_file.h"
#include "tieshard/cli/flags.h"
#include "tieshard/cli/lora_flag.h"
#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/progress.h"
#include "tieshard/cli/runtime/data_flags.h"
#include "tieshard/cli/runtime/dry_run.h"
#include "tieshard/cli/runtime/optimizer_flags.h"
#include "tieshard/cli/runtime/ranks.h"
#include "tieshard/cli/runtime/save_flags.h"
#include "tieshard/core/base/process_memory.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/plan/read_plan.h"
#include "tieshard/runtime/adapters/lora.h"
#include "tieshard/runtime/mesh/local_device.h"
#include "tieshard/runtime/mesh/rank_environment.h"
#include "tieshard/runtime/tensors/torch_dtype.h"
#include "tieshard/runtime/train/stop_signal.h"
#include "tieshard/runtime/train/trainer.h"

namespace tieshard::cli {
namespace {

constexpr const char* kTrainExamples =
    "Examples:\n"
    "  tieshard train --model smollm2/ --data tokens.bin --out runs/a --ranks 2 --steps 200 --lr 2e-4\n"
    "  tieshard train ... --compute-dtype bfloat16          bf16 compute, float32 shards and AdamW\n"
    "  tieshard train ... --ranks 8 --replicas 2            HSDP: two copies of the model, each over 4 ranks\n"
    "  tieshard train ... --schedule cosine --warmup-steps 100 --min-lr-ratio 0.1 --param-groups no_decay --clip 1\n"
    "  tieshard train ... --optimizer lion --lr 3e-5 --weight-decay 0.1\n"
    "  tieshard train ... --lora r=16,alpha=32,targets=q_proj,v_proj --param-dtype bfloat16 --shard-dim first\n"
    "  tieshard train ... --batch 2 --gradient-accumulation-steps 8 --activation-checkpointing\n"
    "  tieshard train ... --save-every 30m --async-save skip --resume      save as it goes; the same line goes on from "
    "there\n"
    "  tieshard train ... --eval-data valid.bin --eval-every 100 --tensorboard\n"
    "  tieshard train --config run.json --lr 1e-4      flags of a file; those of the line win\n"
    "  tieshard train ... --dry-run                    check all of it and show the plan; start nothing\n"
    "  torchrun --nproc-per-node 8 --no-python tieshard train ...\n"
    "\n"
    "OUT gets config.json (every flag), metrics.jsonl (a line a step), summary.json and export/ (a Hugging Face "
    "model),\n"
    "with --lora or --adapter adapter/ in its place (a PEFT adapter; docs/lora.md), with --save-every\n"
    "checkpoints/ (docs/checkpoints.md). SIGTERM and SIGUSR1 save after the step that runs, and end the run.\n"
    "DATA is raw little-endian tokens, e.g. of tools/tokenize_text.py, a file of llm.c's or Megatron's .bin with its "
    ".idx.";

struct TrainFlags {
  RankFlags ranks;
  TrainConfig config;
  std::string param_dtype = "float32";
  std::string compute_dtype{};
  DataFlags data{};
  OpenFlags open{};
  ShardFlags shard{};
  LoadFlags load{};
  OptimizerFlags optimizer{};
  SaveFlags save{};
  std::string lora{};
  std::filesystem::path adapter{};
  std::string lora_tied{};
  bool no_shuffle = false;
  std::string reshard_after_forward = "true";
  bool no_export = false;
  bool dry_run = false;
};

/// Small gradients are 0 in float16: training in it needs loss scaling, which is not there.
void refuse_float16(const char* flag, const std::string& text) {
  if (dtype_from_torch_name(text) == DType::kF16) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "float16 cannot be trained in without loss scaling",
                      .where = flag,
                      .why = concat("expected float32, bfloat16 or float64, got ", text),
                      .fix = concat("use ", flag, " bfloat16")});
  }
}

InputError bad_value(const std::string& flag, const std::string& why, const std::string& fix) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a command line flag has a value that cannot be used",
                     .where = flag,
                     .why = why,
                     .fix = fix});
}

/// Size of the axis dp_shard.
std::int64_t shards_of_each_replica(const RankFlags& flags) {
  const std::int64_t ranks = rank_count(flags);
  if (ranks % flags.replicas != 0) {
    throw bad_value("--replicas",
                    concat("expected a divisor of the ", ranks, " ranks, got ", flags.replicas),
                    "give the number of hosts, mostly: each then holds one copy of the model");
  }
  return ranks / flags.replicas;
}

/// "true", "false" or a divisor of `shards`.
ReshardAfterForward reshard_policy(const std::string& text, std::int64_t shards) {
  if (text == "true" || text == "false") {
    return text == "true";
  }
  std::int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, count);
  if (parsed.ec != std::errc() || parsed.ptr != end || count < 1 || shards % count != 0) {
    throw bad_value("--reshard-after-forward",
                    concat("expected true, false or a divisor of the ", shards, " ranks that shard, got ", text),
                    "give true to spare memory, false to spare time, or the number of ranks on one host");
  }
  return count;
}

/// Nothing where the whole model is trained.
std::optional<AdapterOptions> adapter_options(const TrainFlags& flags) {
  const bool fresh = !flags.lora.empty();
  if (fresh && !flags.adapter.empty()) {
    throw bad_value("--lora",
                    "expected --lora or --adapter, got both",
                    "leave --lora out to go on with an adapter: its adapter_config.json says ranks and targets");
  }
  if (!fresh && flags.adapter.empty()) {
    if (!flags.lora_tied.empty()) {
      throw bad_value(
          "--lora-tied", "expected --lora or --adapter beside it, got neither", "leave it out, or give one");
    }
    return std::nullopt;
  }
  AdapterOptions options{.directory = flags.adapter, .tied = tied_target_flag(flags.lora_tied)};
  if (fresh) {
    options.config = lora_flag(flags.lora);
    options.config.seed = flags.config.seed;
  }
  return options;
}

TrainConfig checked(const TrainFlags& flags) {
  TrainConfig config = flags.config;
  if (config.model.filename() == kSingleWeights) { // the file of a directory, whose small files an export needs
    config.model = config.model.has_parent_path() ? config.model.parent_path() : std::filesystem::path(".");
  }
  const std::int64_t shards = shards_of_each_replica(flags.ranks);
  for (const auto& [flag, text] :
       {std::pair{"--param-dtype", flags.param_dtype}, {"--compute-dtype", flags.compute_dtype}}) {
    refuse_float16(flag, text);
  }
  config.param_dtype = to_torch(dtype_flag("--param-dtype", flags.param_dtype));
  config.compute_dtype =
      flags.compute_dtype.empty() ? config.param_dtype : to_torch(dtype_flag("--compute-dtype", flags.compute_dtype));
  apply(flags.data, config);
  config.resolve = flags.open.options();
  config.shard_dim = flags.shard.policy();
  config.shard_dims = declared_dims(flags.shard.dims);
  config.load = load_options(flags.load, flags.ranks.threads);
  config.shuffle = !flags.no_shuffle;
  config.reshard_after_forward = reshard_policy(flags.reshard_after_forward, shards);
  config.export_model = !flags.no_export;
  config.adapter = adapter_options(flags);
  config.threads = flags.ranks.threads;
  apply(flags.optimizer, rank_count(flags.ranks), config);
  apply(flags.save, config);
  return config;
}

/// What rank 0 shows of a run.
class RunReport {
 public:
  RunReport(const TrainConfig& config, const DeviceMesh& mesh, const Console& console)
      : config_(config), mesh_(mesh), console_(console) {}

  TrainObserver observer() {
    return {.on_load_progress = [this](std::uint64_t done, std::uint64_t total) { show_progress(done, total); },
            .on_load = [this](const ParallelModel& parallel, double seconds) { show_load(parallel, seconds); },
            .on_data = [this](const std::string& flag, const TokenData& data) { show_data(console_, flag, data); },
            .on_step = [this](const StepMetrics& metrics) { show_step(metrics); },
            .on_skipped_step = [this](std::int64_t step, const Diagnostic& finding) { show_skipped(step, finding); },
            .on_resume = [this](const LoadedCheckpoint& loaded) { show_resume(loaded); },
            .on_nothing_to_resume = [this] { show_fresh_start(); },
            .on_save = [this](const SaveReport& report) { show_save(report); },
            .on_skipped_save = [this](std::int64_t step) { show_skipped_save(step); },
            .on_stop = [this](int signal, std::int64_t step) { show_stop(signal, step); },
            .on_export = [this](const ExportReport& report) { show_export(report); },
            .on_adapter = [this](const AdapterReport& report) { show_adapter(report); }};
  }

 private:
  void show_progress(std::uint64_t done, std::uint64_t total) {
    if (!progress_) {
      progress_.emplace(console_, "load", total);
    }
    progress_->update(done);
  }

  void show_load(const ParallelModel& parallel, double seconds) {
    const LoadLedger& ledger = parallel.ledger;
    show_progress(0, 0); // a rank without a byte to read has reported none
    progress_->finish(concat(ledger.entries.size(),
                             " tensors, ",
                             format_parameters(parallel.plan.total_numel()),
                             " parameters on ",
                             mesh_.size(),
                             mesh_.size() == 1 ? " rank" : " ranks",
                             " in ",
                             format_seconds(seconds),
                             " | ledger: ",
                             ledger.initialised() == 0 ? "all" : "the others",
                             " from files, ",
                             ledger.materialized(),
                             " materialized once, ",
                             parallel.ties.groups().size(),
                             " tied, ",
                             ledger.initialised(),
                             " initialised as asked"));
    print_findings(console_.err, parallel.findings);
    show_trained(parallel);
    show_mesh();
  }

  void show_trained(const ParallelModel& parallel) {
    if (!parallel.lora) {
      return;
    }
    const TrainedShare share = trained_share(*parallel.state);
    char percent[32];
    std::snprintf(
        percent, sizeof(percent), "%.2f", 100.0 * static_cast<double>(share.trained) / static_cast<double>(share.all));
    console_.out.text << concat("lora    ",
                                format_parameters(share.trained),
                                " of ",
                                format_parameters(share.all),
                                " parameters are trained (",
                                percent,
                                " %), on ",
                                parallel.lora->targets.size(),
                                " modules\n");
  }

  /// Which axes there are, and what keeps one from sharing memory.
  void show_mesh() {
    const std::vector<MeshAxis> axes = mesh_.axes();
    if (axes.size() == 1) {
      show_backend_note("ranks exchange", mesh_);
      return;
    }
    std::string shown;
    for (const MeshAxis& axis : axes) {
      const DeviceMesh part = mesh_.axis(axis.name);
      shown += concat(shown.empty() ? "" : " x ", axis.name, " ", axis.size);
      shown += part.size() > 1 ? concat(" over ", part.backend_name()) : "";
      show_backend_note(axis.name + " exchanges", part);
    }
    console_.out.text << "mesh    " << shown << "\n";
  }

  void show_backend_note(const std::string& who, const DeviceMesh& mesh) {
    if (!mesh.backend_note().empty()) {
      console_.err.text << concat(
          "note    ", who, " over ", mesh.backend_name(), ", not shared memory: ", mesh.backend_note(), "\n");
      console_.err.text.flush();
    }
  }

  /// On a terminal the line is drawn over; in a pipe every tenth of the run gets a line, and the first and last step.
  void show_step(const StepMetrics& metrics) {
    show_numbers(metrics);
    if (metrics.evaluation) {
      show_evaluation(metrics.step, *metrics.evaluation);
    }
  }

  void show_numbers(const StepMetrics& metrics) {
    spent_ += metrics.seconds;
    const std::int64_t every = std::max<std::int64_t>(1, config_.steps / 10);
    const bool last = metrics.step == config_.steps;
    if (!console_.out.terminal && metrics.step != first_step_ + 1 && metrics.step % every != 0 && !last) {
      return;
    }
    const double left =
        spent_ / static_cast<double>(metrics.step - first_step_) * static_cast<double>(config_.steps - metrics.step);
    char line[200];
    std::snprintf(
        line,
        sizeof(line),
        "step    %lld/%lld  loss %.4f  lr %.2g  norm %.3g  %s tok/s  peak %s  eta %s",
        static_cast<long long>(metrics.step),
        static_cast<long long>(config_.steps),
        metrics.loss,
        metrics.lr,
        metrics.grad_norm,
        format_count(static_cast<std::int64_t>(static_cast<double>(metrics.tokens) / metrics.seconds)).c_str(),
        format_bytes(peak_resident_bytes()).c_str(),
        format_seconds(left).c_str());
    console_.out.text << (console_.out.terminal ? "\r\x1b[K" : "") << line
                      << (!console_.out.terminal || last || metrics.evaluation ? "\n" : "");
    console_.out.text.flush();
  }

  void show_evaluation(std::int64_t step, const Evaluation& evaluation) {
    char line[160];
    std::snprintf(line,
                  sizeof(line),
                  "eval    %lld/%lld  loss %.4f  perplexity %.4g  %s targets, %s\n",
                  static_cast<long long>(step),
                  static_cast<long long>(config_.steps),
                  evaluation.loss,
                  evaluation.perplexity(),
                  format_count(evaluation.targets).c_str(),
                  format_seconds(evaluation.seconds).c_str());
    console_.out.text << line;
    console_.out.text.flush();
  }

  void show_skipped(std::int64_t step, Diagnostic finding) {
    finding.where = concat("step ", step, ", which is skipped, ", finding.where);
    print_findings(console_.err, {finding});
  }

  void show_resume(const LoadedCheckpoint& loaded) {
    first_step_ = loaded.trainer.step;
    print_findings(console_.err, loaded.findings);
    console_.out.text << concat("resume  ",
                                loaded.directory.string(),
                                "  step ",
                                loaded.trainer.step,
                                ", ",
                                format_count(loaded.trainer.tokens),
                                " tokens, ",
                                format_seconds(loaded.seconds),
                                "\n");
    console_.out.text.flush();
  }

  void show_fresh_start() {
    console_.out.text << concat("resume  nothing to go on from in ", config_.out.string(), ": from the start\n");
    console_.out.text.flush();
  }

  void show_save(const SaveReport& report) {
    console_.out.text << concat(
        "save    ", report.directory.string(), "  ", format_bytes(report.bytes), ", ", format_seconds(report.seconds));
    if (config_.save.background) {
      console_.out.text << concat(", in the background after ", format_seconds(report.blocked));
    }
    console_.out.text << "\n";
    for (const std::filesystem::path& path : report.set_aside) {
      console_.out.text << concat("        set aside: ", path.string(), ", of the steps that were given up\n");
    }
    console_.out.text.flush();
  }

  void show_skipped_save(std::int64_t step) {
    console_.err.text << concat("note    step ", step, " is not saved: the save before it is still being written\n");
    console_.err.text.flush();
  }

  void show_stop(int signal, std::int64_t step) {
    console_.out.text << concat("stopped after step ",
                                step,
                                "/",
                                config_.steps,
                                " by ",
                                signal == SIGUSR1 ? "SIGUSR1" : "SIGTERM",
                                ": saved; go on with --resume\n");
    console_.out.text.flush();
  }

  void show_export(const ExportReport& report) {
    std::string left_out;
    for (const std::string& name : report.left_out) {
      left_out += concat(", ", name, " left out (tied)");
    }
    console_.out.text << concat("export  ",
                                report.directory.string(),
                                "  ",
                                format_bytes(report.bytes),
                                ", ",
                                report.tensors,
                                " tensors",
                                left_out,
                                ", reopened and compared, ",
                                format_seconds(report.seconds),
                                "\n");
    console_.out.text.flush();
    print_findings(console_.err, report.findings);
  }

  void show_adapter(const AdapterReport& report) {
    console_.out.text << concat("adapter ",
                                report.directory.string(),
                                "  ",
                                format_bytes(report.bytes),
                                ", ",
                                report.tensors,
                                " tensors, ",
                                format_seconds(report.seconds),
                                "\n");
    console_.out.text.flush();
  }

  const TrainConfig& config_;
  const DeviceMesh& mesh_;
  const Console& console_;
  std::optional<Progress> progress_;
  double spent_ = 0;
  std::int64_t first_step_ = 0; ///< made by earlier jobs
};

PlanOptions plan_options(const TrainFlags& flags, std::int64_t shards) {
  PlanOptions options{.directory = flags.config.model.string(),
                      .ranks = shards,
                      .param_dtype = flags.param_dtype,
                      .compute_dtype = flags.compute_dtype,
                      .reshard_after_forward = flags.reshard_after_forward == "false" ? "false" : "true",
                      .open = flags.open,
                      .shard = flags.shard,
                      .load = flags.load};
  options.step.sequence = flags.config.sequence;
  options.step.batch = flags.config.batch;
  return options;
}

/// One process shows what all ranks would do.
int run_dry(const TrainFlags& flags, const TrainConfig& config, const Console& console) {
  if (read_rank_environment().rank != 0) {
    return kExitSuccess;
  }
  require_device_in_build(device_choice(flags.ranks.device).value_or(read_rank_environment().device));
  const std::int64_t ranks = rank_count(flags.ranks);
  return dry_run(config, ranks, plan_options(flags, ranks / flags.ranks.replicas), console);
}

/// A dimension that cannot be sharded comes from --dim, not from a caller of the library; all else stays as it is.
[[noreturn]] void throw_as_flag_error(const TrainFlags& flags, const UsageError& error) {
  const Code code = error.diagnostic().code;
  const bool of_dims =
      code == Code::kUnknownParameter || code == Code::kBadShardDim || code == Code::kTiedWeightOnVocab;
  if (of_dims && !flags.shard.dims.empty()) {
    throw InputError(error.diagnostic());
  }
  throw error;
}

int run_train(const TrainFlags& flags, const CLI::App& verb, const Console& console) {
  const StopSignals signals; // before the ranks are started
  TrainConfig config = checked(flags);
  if (flags.dry_run) {
    return run_dry(flags, config, console);
  }
  config.flags_json = flags_in_force(verb);
  const auto work = [&](const DeviceMesh& mesh) {
    RunReport report(config, mesh, console);
    try {
      train(config, mesh, report.observer());
    } catch (const UsageError& error) {
      throw_as_flag_error(flags, error);
    }
  };
  return run_ranks(flags.ranks, console, work, OnStopSignal::kPassOn);
}

void add_step_flags(CLI::App& verb, TrainConfig& config) {
  verb.add_option("--steps", config.steps, "Optimizer steps")
      ->check(whole_number(0, 1'000'000'000))
      ->capture_default_str();
  verb.add_option("--batch", config.batch, "Sequences that each rank computes at once")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  verb.add_option("--gradient-accumulation-steps",
                  config.gradient_accumulation_steps,
                  "Batches of each rank in an optimizer step; gradients are kept whole and exchanged with the last")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  verb.add_option("--seq", config.sequence, "Tokens of a sequence")
      ->check(whole_number(2, 100'000'000))
      ->capture_default_str();
}

void add_lora_flags(CLI::App& verb, TrainFlags& flags) {
  verb.add_option("--lora", flags.lora, "Train a LoRA adapter: r=16,alpha=32,targets=q_proj,v_proj (docs/lora.md)")
      ->type_name("KEY=VALUE,...")
      ->check(any_text("KEY=VALUE,..."));
  add_adapter_flags(verb, flags.adapter, flags.lora_tied);
}

void add_sharding_flags(CLI::App& verb, TrainFlags& flags) {
  verb.add_option("--replicas",
                  flags.ranks.replicas,
                  "Copies of the model (HSDP, axis dp_replicate); a divisor of the ranks, mostly the hosts")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  verb.add_option("--reshard-after-forward",
                  flags.reshard_after_forward,
                  "Of a layer's whole parameters: true frees them, false keeps them for the backward, N keeps an Nth")
      ->type_name("true|false|N")
      ->capture_default_str();
  for (const auto& [flag, value] : {std::pair{"--forward-prefetch", &flags.config.forward_prefetch},
                                    {"--backward-prefetch", &flags.config.backward_prefetch}}) {
    verb.add_option(flag, *value, "Layers that are gathered ahead in that pass")
        ->check(whole_number(0, 1'000'000))
        ->capture_default_str();
  }
  verb.add_flag("--activation-checkpointing",
                flags.config.activation_checkpointing,
                "Keep each layer's input only, and compute the layer again in the backward");
}

} // namespace

void add_train(CLI::App& app, Verb& chosen) {
  const auto flags = std::make_shared<TrainFlags>();
  TrainConfig& config = flags->config;
  CLI::App* verb = app.add_subcommand("train", "Train a model over ranks and export it");
  verb->add_option("--model", config.model, "Hugging Face checkpoint directory")->required();
  verb->add_option("--data", config.data, "Token file")->required();
  add_data_flags(*verb, flags->data);
  verb->add_option("--out", config.out, "Directory for the run; must not hold one, but with --resume")->required();
  add_rank_flags(*verb, flags->ranks);
  add_step_flags(*verb, config);
  add_optimizer_flags(*verb, flags->optimizer);
  verb->add_option("--param-dtype", flags->param_dtype, "Of shards and gradients; moments of bfloat16 are float32")
      ->capture_default_str();
  verb->add_option(
      "--compute-dtype", flags->compute_dtype, "Of the unsharded parameters and activations [param-dtype]");
  add_shard_dim_flags(*verb, flags->shard);
  add_open_flags(*verb, flags->open);
  add_load_flags(*verb, flags->load);
  add_sharding_flags(*verb, *flags);
  add_save_flags(*verb, flags->save);
  add_lora_flags(*verb, *flags);
  add_evaluation_flags(*verb, config);
  verb->add_option("--seed", config.seed, "Of the sample order, of a new adapter's values and of dropout")
      ->check(whole_number(0, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  verb->add_flag("--no-shuffle", flags->no_shuffle, "Step s takes consecutive samples, rank-major");
  verb->add_flag(
      "--no-export", flags->no_export, "Leave OUT/export (or adapter) out: only metrics.jsonl and summary.json");
  verb->add_flag("--tensorboard", config.tensorboard, "Write event files for TensorBoard into OUT/tensorboard");
  add_config_flag(*verb);
  verb->add_flag("--dry-run", flags->dry_run, "Check everything up to the first step and show the plan; write nothing");
  verb->footer(kTrainExamples);
  verb->callback([flags, verb, &chosen] {
    chosen = [flags, verb](const Console& console) { return run_train(*flags, *verb, console); };
  });
}

} // namespace tieshard::cli
