#include "tieshard/runtime/load/shard_loader.h"

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/reader.h"
#include "tieshard/core/plan/read_plan.h"
#include "tieshard/runtime/load/materialize.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/torch_dtype.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {
namespace {

using TensorsByName = std::map<std::string, at::Tensor, std::less<>>;

TensorsByName tensors_by_name(const torch::nn::Module& module) {
  TensorsByName tensors;
  for (const NamedTensor& named : named_parameters(module)) {
    tensors.emplace(named.fqn, named.tensor);
  }
  return tensors;
}

void require_same_names(const TensorsByName& tensors, const ShardPlan& plan) {
  for (const ShardedParameter& parameter : plan.parameters()) {
    if (!tensors.contains(parameter.fqn)) {
      throw UsageError({.code = Code::kUnknownParameter,
                        .what = "the plan has a parameter that the module does not have",
                        .where = parameter.fqn,
                        .fix = "build the plan from parameter_table(module), after the module is complete"});
    }
  }
  for (const auto& [fqn, tensor] : tensors) {
    if (plan.find(fqn) == nullptr) {
      throw UsageError({.code = Code::kUnknownParameter,
                        .what = "the module has a parameter that the plan does not have",
                        .where = fqn,
                        .fix = "build the plan from parameter_table(module), after the module is complete"});
    }
  }
}

LedgerEntry make_entry(const ShardedParameter& parameter,
                       const ShardPlan& plan,
                       const Checkpoint& checkpoint,
                       std::int64_t rank) {
  const StoredTensor* stored = plan.ties().source(checkpoint, parameter.fqn);
  return {.fqn = parameter.fqn,
          .aliases = plan.ties().aliases(parameter.fqn),
          .stored_name = stored->name,
          .file = checkpoint.file_name(*stored),
          .offset = stored->offset,
          .elements = numel(plan.local_shape(parameter, rank)),
          .whole_elements = numel(parameter.shape)};
}

/// Materializes what has no bytes; returns the reads to do, with their targets in `targets`.
std::vector<SliceRead> prepare(const TensorsByName& tensors,
                               const ShardPlan& plan,
                               const std::vector<SliceRead>& reads,
                               std::int64_t rank,
                               LoadLedger& ledger,
                               std::vector<ReadTarget>& targets) {
  for (LedgerEntry& entry : ledger.entries) {
    const ShardedParameter& parameter = *plan.find(entry.fqn);
    const bool fresh =
        materialize(tensors.find(entry.fqn)->second, plan.local_shape(parameter, rank), to_torch(parameter.dtype));
    entry.materialized = fresh ? 1 : 0;
  }
  std::vector<SliceRead> wanted;
  for (const SliceRead& read : reads) {
    if (ledger.find(read.fqn)->materialized == 0) {
      continue;
    }
    const at::Tensor& tensor = tensors.find(read.fqn)->second;
    wanted.push_back(read);
    targets.push_back({.data = static_cast<std::byte*>(tensor.data_ptr()), .dtype = from_torch(tensor.scalar_type())});
  }
  return wanted;
}

ReaderOptions reader_options(const LoadOptions& options, const std::vector<SliceRead>& reads) {
  ReaderOptions reader{.threads = options.threads, .buffer_bytes = options.buffer_bytes};
  if (options.on_progress) {
    std::uint64_t total = 0;
    for (const SliceRead& read : reads) {
      total += read.range.bytes();
    }
    reader.on_progress = [&options, total](std::uint64_t done) { options.on_progress(done, total); };
  }
  return reader;
}

/// After a failed read: what this load materialized has no bytes again.
void take_back(const TensorsByName& tensors, const ShardPlan& plan, const LoadLedger& ledger) {
  for (const LedgerEntry& entry : ledger.entries) {
    if (entry.materialized > 0) {
      dematerialize(tensors.find(entry.fqn)->second, plan.find(entry.fqn)->shape);
    }
  }
}

} // namespace

void require_materialized(const torch::nn::Module& module) {
  std::string names;
  int count = 0;
  const auto check = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.is_meta()) {
      names += concat(count == 0 ? "" : ", ", name);
      ++count;
    }
  };
  for (const auto& item : module.named_parameters()) {
    check(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    check(item.key(), item.value());
  }
  if (count > 0) {
    throw UsageError(
        {.code = Code::kStillOnMeta,
         .what = "a tensor has no bytes yet",
         .where = names,
         .why = concat("expected none on the meta device, got ", count),
         .fix = "load_shards() fills parameters; a module has to compute its own buffers on a real device"});
  }
}

LoadLedger load_shards(torch::nn::Module& module,
                       const Checkpoint& checkpoint,
                       const ShardPlan& plan,
                       const DeviceMesh& mesh,
                       const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadLedger ledger;
  agree(mesh, "load", [&] {
    validate_shared_object(module, plan.ties());
    const TensorsByName tensors = tensors_by_name(module);
    require_same_names(tensors, plan);
    const ReadPlan read_plan = build_read_plan(checkpoint, plan, mesh.rank());
    for (const ShardedParameter& parameter : plan.parameters()) {
      ledger.entries.push_back(make_entry(parameter, plan, checkpoint, mesh.rank()));
    }
    ledger.unused = read_plan.unused;
    ledger.findings = read_plan.findings;
    std::vector<ReadTarget> targets;
    const std::vector<SliceRead> reads = prepare(tensors, plan, read_plan.reads, mesh.rank(), ledger, targets);
    try {
      ledger.bytes_read = read_slices(checkpoint, reads, targets, reader_options(options, reads));
    } catch (...) {
      take_back(tensors, plan, ledger);
      throw;
    }
    validate_shared_object(module, plan.ties());
    require_materialized(module);
  });
  ledger.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return ledger;
}

} // namespace tieshard
