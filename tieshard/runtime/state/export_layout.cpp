#include "tieshard/runtime/state/export_layout.h"

#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_index.h"
#include "tieshard/core/ties/tie_flag.h"

namespace tieshard {
namespace {

std::vector<std::vector<TensorSpec>> split(const ShardPlan& plan,
                                           const Checkpoint& source,
                                           std::uint64_t max_shard_bytes,
                                           std::optional<DType> wanted) {
  std::vector<std::vector<TensorSpec>> parts(1);
  std::uint64_t filled = 0;
  for (const ShardedParameter& parameter : plan.parameters()) {
    const StoredTensor* stored = plan.ties().source(source, parameter.fqn);
    const DType source_dtype = stored != nullptr && is_wide_float(stored->dtype) ? stored->dtype : parameter.dtype;
    const DType dtype = wanted.value_or(source_dtype);
    const std::uint64_t bytes = checked_bytes(parameter.shape, dtype).value();
    if (filled > 0 && filled + bytes > max_shard_bytes) {
      parts.emplace_back();
      filled = 0;
    }
    parts.back().push_back({.name = parameter.fqn, .dtype = dtype, .shape = parameter.shape});
    filled += bytes;
  }
  return parts;
}

} // namespace

std::vector<ExportFile> layout_export(const ShardPlan& plan,
                                      const Checkpoint& source,
                                      std::uint64_t max_shard_bytes,
                                      std::optional<DType> dtype) {
  std::vector<std::vector<TensorSpec>> parts = split(plan, source, max_shard_bytes, dtype);
  std::vector<ExportFile> files;
  for (std::size_t index = 0; index < parts.size(); ++index) {
    files.push_back({.name = weights_file_name(index, parts.size()),
                     .layout = layout_safetensors(std::move(parts[index]), {{"format", "pt"}})});
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

std::string export_config(const ShardPlan& plan, const Checkpoint& source, std::optional<DType> dtype) {
  std::string text = read_text_file(source.directory() / "config.json");
  if (const std::optional<bool> flag = changed_tie_flag(plan.ties(), source)) {
    text = with_tie_flag(text, source.config(), *flag);
  }
  const bool quantised = source.config().has("quantization_config");
  if (!quantised && !dtype) {
    return text;
  }
  nlohmann::ordered_json changed = nlohmann::ordered_json::parse(text);
  changed.erase("quantization_config");
  if (dtype) { // transformers 5 writes "dtype", version 4 "torch_dtype"
    const bool nested = changed.contains("text_config") && changed["text_config"].contains("dtype");
    (nested ? changed["text_config"] : changed)[changed.contains("torch_dtype") ? "torch_dtype" : "dtype"] =
        torch_name(*dtype);
  }
  return changed.dump(2) + "\n";
}

} // namespace tieshard
