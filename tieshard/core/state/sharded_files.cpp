#include "tieshard/core/state/sharded_files.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/open_files.h"
#include "tieshard/core/checkpoint/other_weights.h"
#include "tieshard/core/checkpoint/stored_weights.h"
#include "tieshard/core/state/block_collector.h"
#include "tieshard/core/state/numbered_files.h"
#include "tieshard/core/state/sharding_info.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

std::string file_name_of(const SafetensorsFile& file) {
  return file.file().path().filename().string();
}

bool is_sharded(const SafetensorsFile& file) {
  return file.header().metadata.contains(kShardingInfoKey);
}

std::vector<std::string> safetensors_names(const fs::path& directory) {
  std::vector<std::string> names = list_directory(directory);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".safetensors"); });
  return names;
}

std::vector<fs::path> in_directory(const fs::path& directory, const std::vector<std::string>& names) {
  std::vector<fs::path> paths;
  for (const std::string& name : names) {
    paths.push_back(directory / name);
  }
  return paths;
}

/// Whether a file says where its tensors lie. What is no safetensors file says nothing.
bool says_places(const fs::path& path, const SafetensorsLimits& limits) {
  try {
    return is_sharded(SafetensorsFile::open(path, limits));
  } catch (const InputError&) {
    return false;
  }
}

Diagnostic unused_files(const fs::path& directory,
                        const std::vector<SafetensorsFile>& used,
                        const std::vector<std::string>& unused) {
  std::vector<std::string> names;
  std::ranges::transform(used, std::back_inserter(names), file_name_of);
  return {.level = Level::kWarning,
          .code = Code::kSavesMixed,
          .what = "weights files that lie in the directory are not used",
          .where = concat(directory.string(), ", ", format_names(unused)),
          .why = concat("expected one set of weights, got these beside ", format_names(names)),
          .fix = "remove them if they are of an older save, or the used ones if these are the newer weights"};
}

/// The id that the files have; all or none of them have one.
std::string common_id(const fs::path& directory, const std::vector<SafetensorsFile>& files) {
  const auto id_of = [](const SafetensorsFile& file) {
    const auto found = file.header().metadata.find(kSaveIdKey);
    return found == file.header().metadata.end() ? std::string() : found->second;
  };
  const auto shown = [](const std::string& id) { return id.empty() ? "none" : format_name(id); };
  const std::string id = id_of(files.front());
  for (const SafetensorsFile& file : files) {
    if (const std::string other = id_of(file); other != id) {
      throw InputError({.code = Code::kSavesMixed,
                        .what = "sharded files of several saves are in one directory",
                        .where = directory.string(),
                        .why = concat("expected one save's id in all files, got ",
                                      shown(id),
                                      " in ",
                                      file_name_of(files.front()),
                                      " and ",
                                      shown(other),
                                      " in ",
                                      file_name_of(file)),
                        .fix = "keep the files of one save only; an earlier checkpoint may be whole"});
    }
  }
  return id;
}

} // namespace

ShardedFiles ShardedFiles::open(const fs::path& directory, const SafetensorsLimits& limits) {
  require_directory(directory);
  ShardedFiles sharded;
  sharded.directory_ = directory;
  const std::vector<std::string> names = safetensors_names(directory);
  const bool plain = (is_there(directory / kSingleWeights) || is_there(directory / kWeightsIndex)) &&
                     std::ranges::none_of(names, [&](const auto& n) { return says_places(directory / n, limits); });
  if (plain) {
    sharded.take_plain(open_stored_weights(directory, limits), names);
    return sharded;
  }
  if (names.empty()) {
    refuse_other_weights(directory);
    throw InputError({.code = Code::kNoWeights,
                      .what = "the directory holds no safetensors weights",
                      .where = directory.string(),
                      .why = "expected files *.safetensors, got none",
                      .fix = "pass the directory that the files are in; those of subdirectories do not count"});
  }
  require_numbered_files(directory, names);
  sharded.files_ = open_files(in_directory(directory, names), limits);
  sharded.id_ = common_id(directory, sharded.files_);
  BlockCollector collector(directory);
  for (const SafetensorsFile& file : sharded.files_) {
    collector.add(file);
  }
  sharded.tensors_ = collector.finish();
  return sharded;
}

void ShardedFiles::take_plain(StoredWeights weights, std::vector<std::string> names) {
  files_ = std::move(weights.files);
  findings_ = std::move(weights.findings);
  for (StoredTensor& tensor : weights.tensors) {
    tensors_.push_back({.name = std::move(tensor.name), .dtype = tensor.dtype, .shape = tensor.shape, .blocks = {}});
    if (numel(tensor.shape) > 0) {
      tensors_.back().blocks.push_back({.file = tensor.file,
                                        .offset = tensor.offset,
                                        .box = {.offsets = Shape(tensor.shape.size(), 0), .shape = tensor.shape}});
    }
  }
  std::erase_if(
      names, [this](const std::string& name) { return std::ranges::find(files_, name, file_name_of) != files_.end(); });
  if (!names.empty()) {
    findings_.push_back(unused_files(directory_, files_, names));
  }
}

std::optional<Diagnostic> unstated_shapes(const ShardedFiles& files) {
  const auto count = std::ranges::count(files.tensors(), false, &ShardedTensor::stated);
  if (count == 0) {
    return std::nullopt;
  }
  return Diagnostic{
      .level = Level::kWarning,
      .code = Code::kBlockMissing,
      .what = "nothing says how large tensors are, so a lost last file would not be seen",
      .where = files.directory().string(),
      .why = concat(
          "expected the whole shape of each tensor, got blocks alone of ", count, " of ", files.tensors().size()),
      .fix = "compare with the model: merge with --config-from DIR does"};
}

const ShardedTensor* ShardedFiles::find(std::string_view name) const {
  const auto name_of = [](const ShardedTensor& tensor) -> std::string_view { return tensor.name; };
  const auto found = std::ranges::lower_bound(tensors_, name, {}, name_of);
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

} // namespace tieshard
