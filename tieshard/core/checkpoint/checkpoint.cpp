#include "tieshard/core/checkpoint/checkpoint.h"

#include <algorithm>
#include <utility>

#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/other_weights.h"
#include "tieshard/core/checkpoint/shard_check.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr std::uint64_t kMaxConfigBytes = 16 << 20; ///< far more than any model's; its document takes many times that
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Also true for a symbolic link that leads nowhere: opening it then says so.
bool is_there(const fs::path& path) {
  std::error_code ignored; // a path that cannot be asked about counts as absent
  return fs::exists(fs::symlink_status(path, ignored));
}

void check_directory(const fs::path& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (fs::is_directory(status)) {
    return;
  }
  const bool known = status.type() != fs::file_type::none && status.type() != fs::file_type::unknown;
  throw InputError({.code = Code::kDirectoryNotFound,
                    .what = "the checkpoint directory is not there",
                    .where = directory.string(),
                    .why = concat("expected a directory, got ",
                                  known && fs::exists(status) ? "a file"
                                  : error                     ? error.message()
                                                              : "nothing of that name"),
                    .fix = "pass the directory that holds config.json and the weights"});
}

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
  throw InputError(
      {.code = Code::kNoWeights,
       .what = "the directory holds no safetensors weights",
       .where = directory.string(),
       .why = concat(
           "expected ", kSingle, " or ", kIndex, ", got ", names.empty() ? "an empty directory" : format_names(names)),
       .fix = "convert the weights with save_pretrained of transformers, or complete the download"});
}

void append_tensors(const SafetensorsFile& file, std::size_t file_number, std::vector<StoredTensor>& tensors) {
  for (const TensorEntry& entry : file.header().tensors) {
    tensors.push_back({.name = entry.name,
                       .dtype = entry.dtype,
                       .shape = entry.shape,
                       .file = file_number,
                       .offset = file.header().data_start + entry.begin,
                       .bytes = entry.end - entry.begin,
                       .stored_name = entry.name});
  }
}

/// What to say about an index beside model.safetensors; nothing when the index names that file itself.
std::optional<Diagnostic> stale_index(const fs::path& directory) {
  std::string got;
  try {
    const SafetensorsIndex index = parse_safetensors_index(read_text_file(directory / kIndex), kIndex);
    const std::vector<std::string> files = index.files();
    if (std::ranges::binary_search(files, std::string(kSingle))) {
      return std::nullopt;
    }
    std::vector<std::string> missing;
    std::ranges::copy_if(files, std::back_inserter(missing), [&](const auto& f) { return !is_there(directory / f); });
    got = missing.empty() ? concat("an index whose shards are there too: ", format_names(files))
                          : concat("an index whose shards are not there: ", format_names(missing));
  } catch (const InputError& error) {
    got = concat("an index that cannot be used: ", error.diagnostic().why);
  }
  return Diagnostic{.level = Level::kWarning,
                    .code = Code::kStaleIndex,
                    .what = "an index beside a single weights file is not used",
                    .where = concat(directory.string(), ", ", kIndex, " beside ", kSingle),
                    .why = concat("expected one set of weights, got ",
                                  kSingle,
                                  " and ",
                                  got,
                                  "; ",
                                  kSingle,
                                  " is loaded, as transformers does"),
                    .fix = "delete the index, or the single file if the shards are the newer weights"};
}

} // namespace

Checkpoint Checkpoint::open(const fs::path& directory, const SafetensorsLimits& limits) {
  check_directory(directory);
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  const bool has_single = is_there(directory / kSingle);
  const bool has_index = is_there(directory / kIndex);
  if (!has_single && !has_index) {
    refuse_other_weights(directory);
    read_config(directory);
    throw_no_weights(directory);
  }
  const bool has_config = is_there(directory / kConfig);
  if (has_config) {
    checkpoint.config_ = read_config(directory);
  }
  std::optional<Diagnostic> stale;
  if (has_single && has_index) {
    stale = stale_index(directory);
  }
  if (has_index && (!has_single || !stale)) {
    const SafetensorsIndex index = parse_safetensors_index(read_text_file(directory / kIndex), kIndex);
    checkpoint.files_ = open_shards(directory, index, kIndex, limits);
    checkpoint.findings_ = check_shards(directory, index, kIndex, checkpoint.files_, limits);
    for (std::size_t i = 0; i < checkpoint.files_.size(); ++i) {
      append_tensors(checkpoint.files_[i], i, checkpoint.tensors_);
    }
    if (checkpoint.tensors_.size() > index.weight_map.size()) { // the index says which of two copies counts
      std::erase_if(checkpoint.tensors_, [&](const StoredTensor& tensor) {
        return index.weight_map.at(tensor.name) != checkpoint.file_name(tensor);
      });
    }
  } else {
    checkpoint.files_.push_back(SafetensorsFile::open(directory / kSingle, limits));
    append_tensors(checkpoint.files_.front(), 0, checkpoint.tensors_);
    if (stale) {
      checkpoint.findings_.push_back(*std::move(stale));
    }
  }
  std::ranges::sort(checkpoint.tensors_, {}, &StoredTensor::name);
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
