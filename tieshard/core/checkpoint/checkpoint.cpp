#include "tieshard/core/checkpoint/checkpoint.h"

#include <algorithm>
#include <utility>

#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/other_weights.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr std::uint64_t kMaxConfigBytes = 16 << 20; ///< far more than any model's; its document takes many times that

HfConfig read_config(const fs::path& directory) {
  const fs::path path = directory / kConfig;
  if (!is_there(path)) {
    throw InputError({.code = Code::kConfigMissing,
                      .what = "there is no config.json",
                      .where = path.string(),
                      .why = "expected config.json beside the weights, got no such file",
                      .fix = "copy the config.json of the model into the directory; without it neither shapes nor ties "
                             "are known"});
  }
  return HfConfig::parse(read_text_file(path, kMaxConfigBytes), kConfig);
}

[[noreturn]] void throw_no_weights(const fs::path& directory) {
  const std::vector<std::string> names = list_directory(directory);
  throw InputError({.code = Code::kNoWeights,
                    .what = "the directory holds no safetensors weights",
                    .where = directory.string(),
                    .why = concat("expected ",
                                  kSingleWeights,
                                  " or ",
                                  kWeightsIndex,
                                  ", got ",
                                  names.empty() ? "an empty directory" : format_names(names)),
                    .fix = "convert the weights with save_pretrained of transformers, or complete the download"});
}

} // namespace

Checkpoint Checkpoint::open_file(const fs::path& file, const SafetensorsLimits& limits) {
  const fs::path directory = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (file.filename() == kSingleWeights && is_there(directory / kConfig)) {
    return open(directory, limits);
  }
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.config_ = HfConfig::parse("{}", kConfig);
  StoredWeights weights = open_weights_file(file, limits);
  checkpoint.files_ = std::move(weights.files);
  checkpoint.tensors_ = std::move(weights.tensors);
  checkpoint.findings_.push_back({.level = Level::kNote,
                                  .code = Code::kConfigMissing,
                                  .what = "a weights file is looked at by itself",
                                  .where = file.string(),
                                  .why = is_there(directory / kConfig)
                                             ? "the config.json beside it is of all files together, and is not asked"
                                             : "no config.json lies beside it",
                                  .fix = "give the directory of the model to have its names, shapes and ties checked"});
  return checkpoint;
}

Checkpoint Checkpoint::open(const fs::path& directory, const SafetensorsLimits& limits) {
  std::error_code ignored; // what cannot be asked about is refused below
  if (fs::is_regular_file(directory, ignored)) {
    return open_file(directory, limits);
  }
  require_directory(directory);
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  if (!is_there(directory / kSingleWeights) && !is_there(directory / kWeightsIndex)) {
    refuse_other_weights(directory);
    read_config(directory);
    throw_no_weights(directory);
  }
  const bool has_config = is_there(directory / kConfig);
  if (has_config) {
    checkpoint.config_ = read_config(directory);
  }
  StoredWeights weights = open_stored_weights(directory, limits);
  checkpoint.files_ = std::move(weights.files);
  checkpoint.tensors_ = std::move(weights.tensors);
  checkpoint.findings_ = std::move(weights.findings);
  refuse_adapter_weights(directory, checkpoint.tensors_);
  if (!has_config) { // asked after the weights: an adapter has none
    read_config(directory);
  }
  if (auto adapter = adapter_beside_model(directory)) {
    checkpoint.findings_.push_back(*std::move(adapter));
  }
  return checkpoint;
}

Checkpoint Checkpoint::renamed(const std::map<std::string, std::string>& names) && {
  for (StoredTensor& tensor : tensors_) {
    if (const auto found = names.find(tensor.stored_name); found != names.end()) {
      tensor.name = found->second;
    }
  }
  std::ranges::sort(tensors_, {}, &StoredTensor::name);
  return std::move(*this);
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto name_of = [](const StoredTensor& tensor) -> std::string_view { return tensor.name; };
  const auto found = std::ranges::lower_bound(tensors_, name, {}, name_of);
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

std::string Checkpoint::file_name(const StoredTensor& tensor) const {
  return files_.at(tensor.file).file().path().filename().string();
}

} // namespace tieshard
