#include "tieshard/runtime/train/trainer.h"

#include <chrono>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/process_memory.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/families/gpt2.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/core/report/run_report.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/optim/clip_grad_norm.h"
#include "tieshard/runtime/optim/param_groups.h"
#include "tieshard/runtime/train/build_optimizer.h"
#include "tieshard/runtime/train/config_text.h"
#include "tieshard/runtime/train/resume.h"
#include "tieshard/runtime/train/run_directory.h"
#include "tieshard/runtime/train/run_saves.h"
#include "tieshard/runtime/train/stop_signal.h"

namespace tieshard {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ParallelizeOptions parallelize_options(const TrainConfig& config,
                                       const DeviceMesh& mesh,
                                       const TrainObserver& observer) {
  ParallelizeOptions options{.resolve = config.resolve,
                             .param_dtype = config.param_dtype,
                             .shard_dim = config.shard_dim,
                             .shard_dims = config.shard_dims,
                             .freeze = config.freeze,
                             .adapter = config.adapter};
  options.fsdp.reshard_after_forward = config.reshard_after_forward;
  options.fsdp.forward_prefetch = config.forward_prefetch;
  options.fsdp.backward_prefetch = config.backward_prefetch;
  options.fsdp.activation_checkpointing = config.activation_checkpointing;
  options.fsdp.gradient_divide_factor = 1.0; // the loss is divided by the global number of targets
  if (config.compute_dtype != config.param_dtype) {
    options.fsdp.mp_policy.param_dtype = config.compute_dtype;
    options.fsdp.mp_policy.reduce_dtype = config.adapter ? config.adapter->dtype : config.param_dtype;
  }
  options.load = config.load;
  options.load.threads = config.threads;
  if (mesh.rank() == 0) {
    options.load.on_progress = observer.on_load_progress;
  }
  return options;
}

/// One number of every rank, in rank order.
std::vector<double> gather_numbers(const DeviceMesh& mesh, double number) {
  at::Tensor all = at::empty({mesh.size()}, at::kDouble);
  all_gather_into_tensor(mesh, all, at::full({1}, number, at::kDouble));
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + mesh.size()};
}

double slowest(const DeviceMesh& mesh, double seconds) {
  at::Tensor longest = at::full({1}, seconds, at::kDouble);
  all_reduce(mesh, longest, ReduceOp::kMax);
  return longest.item<double>();
}

void gather_memory(const DeviceMesh& mesh, const RankMemory& mine, RunSummary& summary) {
  const std::vector<double> before = gather_numbers(mesh, static_cast<double>(mine.before_load));
  const std::vector<double> after = gather_numbers(mesh, static_cast<double>(mine.after_load));
  const std::vector<double> end = gather_numbers(mesh, static_cast<double>(mine.end));
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    summary.ranks.push_back({.before_load = static_cast<std::uint64_t>(before[rank]),
                             .after_load = static_cast<std::uint64_t>(after[rank]),
                             .end = static_cast<std::uint64_t>(end[rank])});
  }
}

void report_data(const TrainObserver& observer, const RunData& data) {
  if (!observer.on_data) {
    return;
  }
  observer.on_data("--data", data.train);
  if (data.eval) {
    observer.on_data("--eval-data", *data.eval);
  }
}

bool is_due_for_evaluation(const TrainConfig& config, std::int64_t step) {
  return !config.eval_data.empty() &&
         (step == config.steps || (config.eval_every > 0 && step % config.eval_every == 0));
}

/// What is odd about a run, but no reason to stop it.
void add_findings(const TrainConfig& config, ParallelModel& parallel) {
  const std::int64_t context = parallel.checkpoint.config().integer_or("max_position_embeddings", config.sequence);
  if (config.sequence > context) {
    parallel.findings.push_back({.level = Level::kWarning,
                                 .code = Code::kSequenceTooLong,
                                 .what = "sequences are longer than the model's context",
                                 .where = "config.json, max_position_embeddings",
                                 .why = concat("expected at most ", context, " tokens, got ", config.sequence),
                                 .fix = "give a smaller --seq, or raise max_position_embeddings on purpose"});
  }
}

/// Several backward passes of which the last one exchanges gradients; afterwards every pass does so again.
class AccumulationPasses {
 public:
  explicit AccumulationPasses(const LanguageModel& model) : state_(sharded_state(model)) {}
  AccumulationPasses(const AccumulationPasses&) = delete;
  AccumulationPasses& operator=(const AccumulationPasses&) = delete;
  ~AccumulationPasses() {
    begin(/*last=*/true);
  }

  void begin(bool last) const {
    if (state_ != nullptr) {
      state_->set_requires_gradient_sync(last);
      state_->set_is_last_backward(last);
    }
  }

 private:
  std::shared_ptr<FsdpState> state_; ///< null for a model that is not sharded
};

/// The gradient's norm, clipped. @returns whether the step can be made: not when it is skipped
bool clip_gradient(const TrainConfig& config,
                   const DeviceMesh& mesh,
                   const ParallelModel& parallel,
                   const TrainObserver& observer,
                   StepMetrics& metrics) {
  if (config.on_nonfinite_gradient == OnNonFiniteGradient::kStop) {
    metrics.grad_norm = clip_grad_norm(*parallel.state, config.clip);
    return true;
  }
  const ClippedNorm clipped = clip_finite_grad_norm(*parallel.state, config.clip);
  metrics.grad_norm = clipped.norm;
  metrics.skipped = clipped.non_finite.has_value();
  if (metrics.skipped && mesh.rank() == 0 && observer.on_skipped_step) {
    observer.on_skipped_step(metrics.step, *clipped.non_finite);
  }
  return !metrics.skipped;
}

/// What a run goes on with after it was loaded.
struct Run {
  const TrainConfig& config;
  const DeviceMesh& mesh;
  const TrainObserver& observer;
  ParallelModel& parallel;
  RunData& data;
  RunSummary& summary;
};

/// Where the run begins: its optimizer, and the generators that dropout draws from, are set to that.
TrainerState begin(const Run& run, const RunDirectory& directory, torch::optim::Optimizer& optimizer) {
  at::manual_seed(run.config.seed + static_cast<std::uint64_t>(run.mesh.rank())); // of each rank's own dropout masks
  const bool reports = run.mesh.rank() == 0;
  if (!directory.resume) {
    if (run.config.resume && reports && run.observer.on_nothing_to_resume) {
      run.observer.on_nothing_to_resume();
    }
    return fresh_start(run.config);
  }
  LoadedCheckpoint loaded = resume_run(run.config, run.parallel, optimizer, *directory.resume);
  loaded.findings.insert(loaded.findings.begin(), directory.findings.begin(), directory.findings.end());
  if (reports && run.observer.on_resume) {
    run.observer.on_resume(loaded);
  }
  return std::move(loaded.trainer);
}

/// One step from batch to parameters. @returns its metrics, without the time
StepMetrics make_step(const Run& run,
                      const TrainerState& at,
                      double factor,
                      GuardedOptimizer<torch::optim::Optimizer>& optimizer,
                      RunSaves& saves) {
  const TrainConfig& config = run.config;
  const std::int64_t sequences = config.batch * config.gradient_accumulation_steps; // of this rank
  TokenBatch batch;
  agree(run.mesh, "data", [&] { batch = run.data.train.batch_from(at.samples, sequences, run.mesh.rank()); });
  StepMetrics metrics{.step = at.step + 1, .lr = config.lr * factor, .tokens = config.tokens_of_step(run.mesh.size())};
  metrics.loss = backward_global_mean(*run.parallel.model,
                                      run.mesh,
                                      batch.ids,
                                      batch.labels,
                                      config.gradient_accumulation_steps,
                                      {.documents_BT = batch.documents});
  agree(run.mesh, "weights", require_mappings_intact); // a rank that read zeros has spoilt the gradients of all
  if (clip_gradient(config, run.mesh, run.parallel, run.observer, metrics)) {
    saves.await_copy();
    optimizer.step();
  }
  optimizer.zero_grad();
  return metrics;
}

/// What rank 0 writes of each step.
class StepFiles {
 public:
  StepFiles(const TrainConfig& config, std::int64_t made) : metrics_(config.out / "metrics.jsonl", made) {
    if (config.tensorboard) {
      events_.emplace(config.out / "tensorboard", made + 1);
    }
  }

  void write(const StepMetrics& metrics) {
    metrics_.write(metrics);
    if (events_) {
      events_->write(metrics.step, scalars_of(metrics));
    }
  }

 private:
  MetricsFile metrics_;
  std::optional<EventFile> events_;
};

/// The steps of a run. @returns false when a signal ended it before the last one
bool run_steps(const Run& run, const RunDirectory& directory) {
  const TrainConfig& config = run.config;
  const DeviceMesh& mesh = run.mesh;
  std::optional<StepFiles> files;
  auto optimizer = build_optimizer(config, run.parallel);
  const GroupRates rates(optimizer.raw());
  const LrSchedule schedule = lr_schedule_of(config, mesh.size());
  TrainerState at = begin(run, directory, optimizer.raw());
  run.summary.first_step = at.step;
  RunSaves saves(config, mesh, run.parallel, optimizer.raw(), run.observer, run.summary);
  run.parallel.model->train();
  const std::int64_t first = at.step;
  while (at.step < config.steps && run.summary.stopped_by == 0) {
    const Clock::time_point start = Clock::now();
    const double factor = schedule.factor(config.schedule_by_tokens ? at.tokens : at.step);
    rates.apply(optimizer.raw(), factor);
    StepMetrics metrics = make_step(run, at, factor, optimizer, saves);
    const StepEnd end = exchange(
        mesh, {.seconds = seconds_since(start), .signal = StopSignals::received(), .due = saves.due_by_time()});
    metrics.seconds = end.seconds;
    run.summary.stopped_by = end.signal;
    if (end.signal == 0 && is_due_for_evaluation(config, metrics.step)) {
      metrics.evaluation = evaluate(*run.parallel.model, mesh, *run.data.eval, config.batch, config.eval_samples);
    }
    run.summary.steps.push_back(metrics);
    agree(mesh, "metrics", [&] {
      saves.require_no_failure();
      if (mesh.rank() == 0) {
        if (!files) { // only now, so that a run that never made a step can be started again
          files.emplace(config, first);
        }
        files->write(metrics);
      }
    });
    if (mesh.rank() == 0 && run.observer.on_step) {
      run.observer.on_step(metrics);
    }
    ++at.step;
    at.samples += config.batch * config.gradient_accumulation_steps * mesh.size();
    at.tokens += metrics.tokens;
    saves.after_step(at, end);
  }
  saves.finish();
  if (run.summary.stopped_by != 0 && mesh.rank() == 0 && run.observer.on_stop) {
    run.observer.on_stop(run.summary.stopped_by, at.step);
  }
  return run.summary.stopped_by == 0;
}

/// export/, or adapter/ in its place; an earlier job's is replaced.
void export_run(const Run& run) {
  const Clock::time_point start = Clock::now();
  const bool reports = run.mesh.rank() == 0;
  if (run.parallel.lora) {
    const AdapterReport report =
        save_adapter(*run.parallel.state, *run.parallel.lora, run.config.out / "adapter", Existing::kReplace);
    if (reports && run.observer.on_adapter) {
      run.observer.on_adapter(report);
    }
  } else {
    const ExportReport report = export_hf(*run.parallel.state,
                                          run.parallel.checkpoint,
                                          run.config.out / "export",
                                          {.dtype = run.config.export_dtype, .existing = Existing::kReplace});
    if (reports && run.observer.on_export) {
      run.observer.on_export(report);
    }
  }
  run.summary.export_seconds = seconds_since(start);
}

/// What `info` says of some rows of its batch, on `device`.
SequenceInfo rows_of(const SequenceInfo& info, std::int64_t first, std::int64_t rows, at::Device device) {
  const auto part = [&](const at::Tensor& whole) {
    return whole.defined() ? whole.narrow(0, first, rows).to(device) : whole;
  };
  return {.documents_BT = part(info.documents_BT), .decoder_ids_BT = part(info.decoder_ids_BT)};
}

} // namespace

double backward_global_mean(LanguageModel& model,
                            const DeviceMesh& mesh,
                            const at::Tensor& ids,
                            const at::Tensor& labels,
                            std::int64_t accumulation_steps,
                            const SequenceInfo& info) {
  at::Tensor targets = at::full({1}, model.count_targets(labels), at::kLong);
  all_reduce(mesh, targets);
  const auto count = targets.item<std::int64_t>();
  if (count == 0) {
    throw InputError({.code = Code::kDataTooShort,
                      .what = "the global batch has no target",
                      .where = mesh.where(),
                      .fix = "give sequences of at least two tokens, and labels that are not all -100"});
  }
  const AccumulationPasses passes(model);
  const at::Tensor ids_here = ids.to(mesh.device());
  const at::Tensor labels_here = labels.to(mesh.device());
  at::Tensor total = at::zeros({1}, at::kDouble);
  const std::int64_t rows = ids.size(0) / accumulation_steps;
  for (std::int64_t part = 0; part < accumulation_steps; ++part) {
    passes.begin(/*last=*/part + 1 == accumulation_steps);
    const at::Tensor loss = model.loss(ids_here.narrow(0, part * rows, rows),
                                       labels_here.narrow(0, part * rows, rows),
                                       1.0 / static_cast<double>(count),
                                       rows_of(info, part * rows, rows, mesh.device()));
    loss.backward();
    total += loss.detach().to(at::kCPU, at::kDouble);
  }
  all_reduce(mesh, total);
  return total.item<double>();
}

RunData RunData::open(const TrainConfig& config) {
  const Checkpoint checkpoint = Checkpoint::open(config.model);
  require_target_of(require_family(checkpoint.config()), checkpoint.config(), config.target);
  require_positions(checkpoint.config(), config.sequence);
  TokenDataOptions options{.format = config.data_format,
                           .dtype = config.data_dtype,
                           .sequence = config.sequence,
                           .vocab_size = checkpoint.config().integer("vocab_size"),
                           .shuffle = config.shuffle,
                           .seed = config.seed,
                           .label_mask = config.label_mask,
                           .documents = config.documents,
                           .document_separator = config.document_separator,
                           .target = config.target};
  RunData data{.train = TokenData::open(config.data, options)};
  data.train.require_a_target();
  if (!config.eval_data.empty()) {
    options.label_mask = config.eval_label_mask;
    data.eval = TokenData::open(config.eval_data, options);
    data.eval->require_evaluable(config.eval_samples);
  }
  return data;
}

RunSummary train(const TrainConfig& config, const DeviceMesh& mesh, const TrainObserver& observer) {
  const StopSignals signals;
  at::set_num_threads(config.threads);
  require_same_config_on_ranks(config, mesh);
  std::optional<RunData> data;
  agree(mesh, "inputs", [&] { // before anything is loaded, so that a wrong path shows in milliseconds
    data.emplace(RunData::open(config));
    lr_schedule_of(config, mesh.size()); // refuses one that cannot be followed
    if (mesh.rank() == 0) {
      report_data(observer, *data);
    }
  });
  const RunDirectory directory = open_run_directory(config, mesh);
  RunSummary summary;
  RankMemory memory{.before_load = peak_resident_bytes()};
  const Clock::time_point start = Clock::now();
  ParallelModel parallel = parallelize(config.model, mesh, parallelize_options(config, mesh, observer));
  summary.load_seconds = slowest(mesh, seconds_since(start));
  summary.ready_at = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  memory.after_load = peak_resident_bytes();
  add_findings(config, parallel);
  if (mesh.rank() == 0 && observer.on_load) {
    observer.on_load(parallel, summary.load_seconds);
  }
  const Run run{config, mesh, observer, parallel, *data, summary};
  if (run_steps(run, directory) && config.export_model) {
    export_run(run);
  }
  memory.end = peak_resident_bytes();
  gather_memory(mesh, memory, summary);
  agree(mesh, "summary", [&] {
    if (mesh.rank() == 0) {
      write_text_file(config.out / "summary.json", to_json(summary));
      write_run_report(config.out);
    }
  });
  return summary;
}

} // namespace tieshard
