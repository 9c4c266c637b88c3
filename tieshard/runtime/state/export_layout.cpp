#include "tieshard/runtime/state/export_layout.h"

#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_index.h"
#include "tieshard/core/plan/mxfp4_source.h"
#include "tieshard/core/ties/tie_flag.h"
#include "tieshard/runtime/state/kept_encoding.h"

namespace tieshard {
namespace {

/// The dtype in which a parameter leaves where no other one is asked for.
DType dtype_of(const ShardPlan& plan, const Checkpoint& source, const ShardedParameter& parameter) {
  const StoredTensor* const stored = plan.ties().source(source, parameter.fqn);
  if (stored != nullptr && is_wide_float(stored->dtype)) {
    return stored->dtype;
  }
  const bool decoded = stored != nullptr || mxfp4_source(source, plan, parameter).has_value();
  return decoded ? source.config().dtype().value_or(DType::kBF16) : parameter.dtype;
}

/// A tensor of the export; `copied` where it leaves as it is stored.
struct PlannedTensor {
  TensorSpec spec;
  const StoredTensor* copied = nullptr;
};

/// One for a parameter, or its blocks and scales.
std::vector<PlannedTensor> tensors_of(const ShardPlan& plan,
                                      const Checkpoint& source,
                                      const ShardedParameter& parameter,
                                      std::optional<DType> wanted,
                                      const std::set<std::string>& kept) {
  if (!kept.contains(parameter.fqn)) {
    const DType dtype = wanted ? *wanted : dtype_of(plan, source, parameter);
    return {{.spec = {.name = parameter.fqn, .dtype = dtype, .shape = parameter.shape}}};
  }
  std::vector<PlannedTensor> tensors;
  const WeightSource stored = mxfp4_source(source, plan, parameter).value();
  for (const StoredTensor* const part : {stored.values, stored.scales}) {
    tensors.push_back({.spec = {.name = part->name, .dtype = part->dtype, .shape = part->shape}, .copied = part});
  }
  return tensors;
}

std::vector<std::vector<PlannedTensor>> split(const ShardPlan& plan,
                                              const Checkpoint& source,
                                              std::uint64_t max_shard_bytes,
                                              std::optional<DType> wanted,
                                              const std::set<std::string>& kept) {
  std::vector<std::vector<PlannedTensor>> parts(1);
  std::uint64_t filled = 0;
  for (const ShardedParameter& parameter : plan.parameters()) {
    for (PlannedTensor& tensor : tensors_of(plan, source, parameter, wanted, kept)) {
      const std::uint64_t bytes = checked_bytes(tensor.spec.shape, tensor.spec.dtype).value();
      if (filled > 0 && filled + bytes > max_shard_bytes) {
        parts.emplace_back();
        filled = 0;
      }
      parts.back().push_back(std::move(tensor));
      filled += bytes;
    }
  }
  return parts;
}

/// Modules whose weights the source stores as MXFP4 and the export does not.
std::set<std::string> decoded_modules(const ShardPlan& plan,
                                      const Checkpoint& source,
                                      const std::set<std::string>& kept) {
  std::set<std::string> modules;
  for (const ShardedParameter& parameter : plan.parameters()) {
    if (!kept.contains(parameter.fqn) && mxfp4_source(source, plan, parameter)) {
      modules.insert(module_of(parameter.fqn));
    }
  }
  return modules;
}

} // namespace

std::vector<ExportFile> layout_export(const ShardPlan& plan,
                                      const Checkpoint& source,
                                      std::uint64_t max_shard_bytes,
                                      std::optional<DType> dtype,
                                      const std::set<std::string>& kept) {
  const std::vector<std::vector<PlannedTensor>> parts = split(plan, source, max_shard_bytes, dtype, kept);
  std::vector<ExportFile> files;
  for (std::size_t index = 0; index < parts.size(); ++index) {
    ExportFile file{.name = weights_file_name(index, parts.size()), .layout = {}};
    std::vector<TensorSpec> specs;
    for (const PlannedTensor& tensor : parts[index]) {
      specs.push_back(tensor.spec);
      if (tensor.copied != nullptr) {
        file.copied.emplace(tensor.spec.name,
                            CopiedTensor{.file = source.directory() / source.file_name(*tensor.copied),
                                         .offset = tensor.copied->offset});
      }
    }
    file.layout = layout_safetensors(std::move(specs), {{"format", "pt"}});
    files.push_back(std::move(file));
  }
  return files;
}

std::string export_index(const std::vector<ExportFile>& files) {
  std::map<std::string, std::string> weight_map;
  std::uint64_t total = 0;
  for (const ExportFile& file : files) {
    for (const TensorEntry& tensor : file.layout.header.tensors) {
      weight_map[tensor.name] = file.name;
      total += tensor.end - tensor.begin;
    }
  }
  return safetensors_index_text(weight_map, total);
}

std::string export_config(const ShardPlan& plan,
                          const Checkpoint& source,
                          std::optional<DType> dtype,
                          const std::set<std::string>& kept) {
  std::string text = read_text_file(source.directory() / "config.json");
  if (const std::optional<bool> flag = changed_tie_flag(plan.ties(), source)) {
    text = with_tie_flag(text, source.config(), *flag);
  }
  const std::set<std::string> decoded = decoded_modules(plan, source, kept);
  const bool quantised = source.config().has("quantization_config") && (kept.empty() || !decoded.empty());
  if (!quantised && !dtype) {
    return text;
  }
  nlohmann::ordered_json changed = nlohmann::ordered_json::parse(text);
  if (kept.empty()) {
    changed.erase("quantization_config");
  } else {
    for (const std::string& module : decoded) {
      changed["quantization_config"]["modules_to_not_convert"].push_back(module);
    }
  }
  if (!dtype && kept.empty() && !source.config().dtype()) {
    dtype = DType::kBF16; // the file need not have said so before: the encoding did
  }
  if (dtype) { // transformers 5 writes "dtype", version 4 "torch_dtype"
    const bool nested = changed.contains("text_config") && changed["text_config"].contains("dtype");
    (nested ? changed["text_config"] : changed)[changed.contains("torch_dtype") ? "torch_dtype" : "dtype"] =
        torch_name(*dtype);
  }
  return changed.dump(2) + "\n";
}

} // namespace tieshard
