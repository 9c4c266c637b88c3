#include "tieshard/runtime/load/shard_loader.h"

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json.h"
#include "tieshard/core/io/local_shards.h"
#include "tieshard/core/plan/read_plan.h"
#include "tieshard/runtime/load/materialize.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
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

/// Parameters that have their bytes already.
std::set<std::string> materialized_names(const TensorsByName& tensors) {
  std::set<std::string> names;
  for (const auto& [fqn, tensor] : tensors) {
    if (!tensor.is_meta()) {
      names.insert(fqn);
    }
  }
  return names;
}

LocalShardOptions shard_options(const LoadOptions& options, const std::set<std::string>& skip) {
  return {.threads = options.threads,
          .read_buffer = options.read_buffer,
          .map = options.map,
          .check_values = options.check_values,
          .host_ram = options.host_ram,
          .skip = &skip,
          .on_progress = options.on_progress};
}

/// A tensor over the shard's memory, which lives as long as its storage.
at::Tensor wrap(const LocalShard& shard) {
  const auto options = at::TensorOptions().dtype(to_torch(shard.dtype)).device(at::kCPU);
  if (shard.data == nullptr) {
    return at::empty(shard.shape, options);
  }
  return at::from_blob(shard.data, shard.shape, [memory = shard.memory](void*) mutable { memory.reset(); }, options);
}

/// What a module has computed for itself follows its parameters.
void move_buffers(const torch::nn::Module& module, at::Device device) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& buffer : module.buffers()) {
    if (!buffer.is_meta() && buffer.device() != device) {
      buffer.set_data(buffer.to(device));
    }
  }
}

/// Each rank saw its own parts; whoever shows the findings of one shows those of all.
void share_not_finite(const DeviceMesh& mesh, LoadLedger& ledger) {
  Json mine = Json::array();
  for (const NotFinite& one : ledger.not_finite) {
    mine.push_back({one.fqn, one.index, one.nan});
  }
  std::map<std::string, NotFinite> all; // by name, the first place of any rank
  for (const std::string& text : all_gather_text(mesh, mine.dump(), CollectivePurpose::named("what is not finite"))) {
    for (const Json& one : parse_json(text, "another rank")) {
      NotFinite found{.fqn = one[0], .index = one[1].get<Shape>(), .nan = one[2]};
      const auto [first, fresh] = all.try_emplace(found.fqn, found);
      if (found.index < first->second.index) {
        first->second = found;
      }
    }
  }
  std::erase_if(ledger.findings, [](const Diagnostic& finding) { return finding.code == Code::kNotFinite; });
  ledger.not_finite.clear();
  for (const auto& [fqn, found] : all) {
    ledger.not_finite.push_back(found);
  }
  if (!all.empty()) {
    ledger.findings.push_back(not_finite_finding(ledger.not_finite));
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
  const std::int64_t rank = mesh.axis("dp_shard").rank();
  const auto start = std::chrono::steady_clock::now();
  LocalShards loaded;
  TensorsByName tensors;
  agree(mesh, "load", [&] {
    validate_shared_object(module, plan.ties());
    tensors = tensors_by_name(module);
    require_same_names(tensors, plan);
    const ReadPlan reads = build_read_plan(checkpoint, plan, rank, options.sources);
    const std::set<std::string> skip = materialized_names(tensors);
    loaded = load_local_shards(checkpoint, plan, reads, rank, shard_options(options, skip));
  });
  share_not_finite(mesh, loaded.ledger);
  agree(mesh, "materialize", [&] { // only now that no rank has failed: else all parameters stay as they were
    for (LocalShard& shard : loaded.shards) {
      materialize(tensors.at(shard.fqn), wrap(shard).to(mesh.device())); // itself on the cpu
      shard.memory.reset(); // of a copy's original, before the next one is copied
    }
    move_buffers(module, mesh.device());
    validate_shared_object(module, plan.ties());
    require_materialized(module);
  });
  loaded.ledger.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(loaded.ledger);
}

} // namespace tieshard
