#include "tieshard/runtime/state/checkpoint_writer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <span>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/content_hash.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/companion_files.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/core/state/rank_marks.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/state/export_layout.h"
#include "tieshard/runtime/state/generator_state.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string new_id() {
  std::random_device source;
  std::string id;
  for (int part = 0; part < 4; ++part) {
    char digits[9];
    std::snprintf(digits, sizeof(digits), "%08x", source());
    id += digits;
  }
  return id;
}

std::vector<TieRecord> tie_records(const TieRegistry& ties) {
  std::vector<TieRecord> records;
  for (const TieGroup& group : ties.groups()) {
    for (const TieAlias& alias : group.aliases) {
      records.push_back({.canonical = group.canonical,
                         .alias = alias.name,
                         .evidence = std::string(id(alias.reasons.front().evidence))});
    }
  }
  return records;
}

std::vector<MeshAxisRecord> mesh_records(const DeviceMesh& mesh) {
  std::vector<MeshAxisRecord> records;
  for (const MeshAxis& axis : mesh.axes()) {
    records.push_back({.name = axis.name, .size = axis.size});
  }
  return records;
}

/// What every rank tells the others before a save.
struct RankNotes {
  std::string id; ///< rank 0's counts
  std::string records;
  std::uint64_t bytes = 0;
  std::string generator;
};

std::string to_text(const RankNotes& notes) {
  return concat(notes.id, " ", notes.records, " ", notes.bytes, " ", notes.generator);
}

RankNotes parse_notes(const std::string& text) {
  RankNotes notes;
  std::istringstream(text) >> notes.id >> notes.records >> notes.bytes >> notes.generator;
  return notes;
}

} // namespace

/// One save on one rank.
struct CheckpointWriter::Job {
  Manifest manifest; ///< files are added at the end
  TrainerState trainer;
  RankBlocks blocks;
  fs::path staging;
  std::uint64_t bytes = 0; ///< of all ranks
  std::int64_t rank = 0;   ///< on the axis dp_shard
  std::int64_t ranks = 1;
  Clock::time_point started;
  std::atomic<double> blocked = 0; ///< await_copy() may add to it while publish() reads it
  std::atomic<bool> given_up = false;
  std::shared_future<void> copied; ///< of a copy that goes on after save()
  std::future<void> written;       ///< of a background save
  std::optional<SaveReport> report;

  std::vector<FileRecord> write_shards() const {
    const int parts = manifest_has_state() ? 2 : 1;
    std::vector<FileRecord> files{
        write_shard_file(staging, shard_file_name(rank, 0, parts), blocks.model, manifest.id)};
    if (parts > 1) {
      files.push_back(write_shard_file(staging, shard_file_name(rank, 1, parts), blocks.optimizer, manifest.id));
    }
    return files;
  }

  /// The files that rank 0 writes beside the shards.
  std::vector<FileRecord> write_beside(const CheckpointWriterOptions& options, const std::string& config) const {
    write_text_file(staging / TrainerState::kFileName, to_json(trainer));
    if (options.source != nullptr) {
      write_text_file(staging / "config.json", config);
      copy_companion_files(options.source->directory(), staging);
    }
    std::vector<FileRecord> files;
    for (const std::string& name : list_directory(staging)) {
      if (!name.starts_with(".") && !name.ends_with(".safetensors")) {
        files.push_back(record_of(staging, name));
      }
    }
    return files;
  }

 private:
  bool manifest_has_state() const {
    return std::ranges::any_of(manifest.parameters, [](const ParameterRecord& record) {
      return record.optimizer && !record.optimizer->moments.empty();
    });
  }
};

CheckpointWriter::CheckpointWriter(std::shared_ptr<FsdpState> state,
                                   const torch::optim::Optimizer& optimizer,
                                   const fs::path& directory,
                                   CheckpointWriterOptions options)
    : state_(std::move(state)), optimizer_(optimizer), store_(directory), options_(std::move(options)) {}

CheckpointWriter::~CheckpointWriter() {
  if (running_ != nullptr) {
    running_->given_up = true;
    running_->written.wait();
    if (state_->world().rank() == 0 && !running_->report) {
      store_.discard(running_->manifest.step);
    }
  }
}

bool CheckpointWriter::writes() const {
  return state_->world().axis("dp_replicate").rank() == 0; // the other copies hold the same
}

std::shared_ptr<CheckpointWriter::Job> CheckpointWriter::make_job(TrainerState trainer, Clock::time_point started) {
  auto job = std::make_shared<Job>();
  job->started = started;
  const DeviceMesh& world = state_->world();
  job->rank = state_->mesh().rank();
  job->ranks = state_->mesh().size();
  job->manifest.step = trainer.step;
  job->manifest.mesh = mesh_records(world);
  job->manifest.optimizer = options_.optimizer;
  job->manifest.parameters = parameter_records(*state_, &optimizer_, options_.frozen);
  job->manifest.ties = tie_records(state_->plan().ties());
  job->staging = store_.staging_of(trainer.step);
  job->blocks = rank_blocks(*state_, &optimizer_, job->manifest.parameters);
  ContentHash hash;
  const std::string described = to_json(job->manifest);
  hash.update(std::as_bytes(std::span(described)));
  const RankNotes mine{.id = new_id(),
                       .records = hash.hex(),
                       .bytes = writes() ? job->blocks.bytes() : 0,
                       .generator = generator_state(world.device())};
  const std::vector<std::string> all =
      all_gather_text(world, to_text(mine), CollectivePurpose::named("checkpoint: what is saved"));
  trainer.generators.clear();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const RankNotes notes = parse_notes(all[rank]);
    if (rank == 0) {
      job->manifest.id = notes.id;
    }
    if (notes.records != mine.records) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "ranks would save different states",
                        .where = concat(world.where(), " and rank ", rank),
                        .why = "expected the same step, parameters and optimizer state on both",
                        .fix = "call save() on every rank after the same step"});
    }
    job->bytes += notes.bytes;
    trainer.generators.push_back(notes.generator);
  }
  job->trainer = std::move(trainer);
  return job;
}

bool CheckpointWriter::busy_anywhere() {
  const bool busy =
      running_ != nullptr && running_->written.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  at::Tensor any = at::full({1}, busy ? 1.0 : 0.0, at::kDouble);
  all_reduce(state_->world(), any, ReduceOp::kMax, CollectivePurpose::named("checkpoint: busy"));
  return any.item<double>() > 0;
}

/// Takes the end of this rank's background save.
void CheckpointWriter::collect() {
  if (running_ == nullptr) {
    return;
  }
  const std::shared_ptr<Job> job = std::exchange(running_, nullptr);
  try {
    job->written.get();
  } catch (const Error& error) {
    Diagnostic diagnostic = error.diagnostic();
    if (diagnostic.code != Code::kSaveFailed) {
      diagnostic.why = concat(diagnostic.what, ": ", diagnostic.where, ", ", diagnostic.why);
      diagnostic.code = Code::kSaveFailed;
      diagnostic.what = "a checkpoint could not be saved in the background";
      diagnostic.where = job->staging.string();
    }
    if (state_->world().rank() == 0) {
      store_.discard(job->manifest.step);
    }
    throw PeerError(diagnostic);
  }
  if (job->report) {
    reports_.push_back(*job->report);
  }
}

bool CheckpointWriter::save(TrainerState trainer) {
  const Clock::time_point started = Clock::now();
  if (options_.background) {
    if (options_.busy == BusySave::kSkip && busy_anywhere()) {
      return false;
    }
    finish();
  }
  const std::shared_ptr<Job> job = make_job(std::move(trainer), started);
  try {
    agree(state_->world(), "checkpoint: stage", [&] {
      if (state_->world().rank() == 0) {
        if (!lock_) {
          lock_ = DirectoryLock::take(store_.directory());
        }
        store_.stage(job->manifest.step, job->bytes);
      }
    });
    options_.background ? save_later(job) : save_now(job);
  } catch (...) {
    if (state_->world().rank() == 0 && lock_) {
      store_.discard(job->manifest.step);
    }
    throw;
  }
  return true;
}

void CheckpointWriter::save_now(const std::shared_ptr<Job>& job) {
  const DeviceMesh& world = state_->world();
  std::vector<FileRecord> files;
  agree(world, "checkpoint: write", [&] {
    if (writes()) {
      files = job->write_shards();
    }
    require_mappings_intact(); // zeros in place of weights would be saved as such
  });
  const std::vector<std::string> all =
      all_gather_text(world, to_text(files), CollectivePurpose::named("checkpoint: files"));
  agree(world, "checkpoint: publish", [&] {
    if (world.rank() == 0) {
      for (std::size_t rank = 1; rank < all.size(); ++rank) {
        const std::vector<FileRecord> of_rank = parse_records(all[rank]);
        files.insert(files.end(), of_rank.begin(), of_rank.end());
      }
      publish(*job, files);
    }
  });
  if (job->report) {
    job->report->blocked = job->report->seconds;
    reports_.push_back(*job->report);
  }
}

void CheckpointWriter::save_later(const std::shared_ptr<Job>& job) {
  if (preparing_.valid()) {
    preparing_.get();
  }
  const auto copy = [this, job] {
    if (writes()) {
      job->blocks = snapshot(job->blocks, buffer_);
    }
  };
  if (options_.overlap_copy) {
    job->copied = std::async(std::launch::async, copy).share();
    copying_ = true;
  } else {
    agree(state_->world(), "checkpoint: copy", [&] {
      copy();
      require_mappings_intact(); // zeros in place of weights would be saved as such
    });
  }
  const bool first = state_->world().rank() == 0;
  const bool writer = writes();
  job->blocked = seconds_since(job->started);
  running_ = job;
  job->written = std::async(std::launch::async, [this, job, first, writer, copied = job->copied] {
    if (!writer) {
      return;
    }
    try {
      if (copied.valid()) {
        copied.get();
        require_mappings_intact();
      }
      std::vector<FileRecord> files = job->write_shards();
      if (!first) {
        mark_done(job->staging, job->rank, files);
        return;
      }
      const std::vector<FileRecord> others = await_marks(job->staging, job->ranks, job->given_up);
      files.insert(files.end(), others.begin(), others.end());
      publish(*job, files);
    } catch (const std::exception& error) {
      if (!first) {
        mark_failed(job->staging, job->rank, error.what());
      }
      throw;
    }
  });
}

void CheckpointWriter::await_copy() {
  if (!std::exchange(copying_, false)) {
    return;
  }
  const Clock::time_point started = Clock::now();
  const std::shared_ptr<Job> job = running_; // null where this rank has collected it already
  agree(state_->world(), "checkpoint: copy", [&] {
    if (job != nullptr) {
      job->copied.get();
    }
  });
  if (job != nullptr) {
    job->blocked = job->blocked + seconds_since(started);
  }
}

void CheckpointWriter::publish(Job& job, const std::vector<FileRecord>& files) {
  const std::string config = options_.source == nullptr ? "" : export_config(state_->plan(), *options_.source);
  job.manifest.files = job.write_beside(options_, config);
  job.manifest.files.insert(job.manifest.files.end(), files.begin(), files.end());
  std::ranges::sort(job.manifest.files, {}, &FileRecord::name);
  write_text_file(job.staging / Manifest::kFileName, to_json(job.manifest));
  std::vector<fs::path> set_aside = store_.publish(job.manifest.step);
  if (options_.keep > 0) {
    store_.prune(options_.keep);
  }
  SaveReport report{.directory = store_.path_of(job.manifest.step), .step = job.manifest.step, .blocked = job.blocked};
  for (const FileRecord& file : job.manifest.files) {
    report.bytes += file.bytes;
  }
  report.seconds = seconds_since(job.started);
  job.report = report;
}

void CheckpointWriter::finish() {
  if (!options_.background) {
    return;
  }
  const bool first = state_->world().rank() == 0;
  agree(state_->world(), "checkpoint: in the background", [&] {
    if (!first) {
      collect();
    }
  });
  agree(state_->world(), "checkpoint: published", [&] {
    if (first) {
      collect();
    }
  });
}

void CheckpointWriter::require_no_failure() {
  if (running_ != nullptr && running_->written.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    collect();
  }
}

void CheckpointWriter::prepare() {
  if (options_.background && writes() && running_ == nullptr && !preparing_.valid()) {
    const std::uint64_t bytes =
        rank_blocks(*state_, &optimizer_, parameter_records(*state_, &optimizer_, options_.frozen)).bytes();
    preparing_ = std::async(std::launch::async, [this, bytes] { buffer_.reserve(bytes); });
  }
}

std::vector<SaveReport> CheckpointWriter::take_reports() {
  return std::exchange(reports_, {});
}

} // namespace tieshard
