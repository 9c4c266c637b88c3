#include "tieshard/core/checkpoint/stored_weights.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/shard_check.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

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
    const SafetensorsIndex index = parse_safetensors_index(read_text_file(directory / kWeightsIndex), kWeightsIndex);
    const std::vector<std::string> files = index.files();
    if (std::ranges::binary_search(files, std::string(kSingleWeights))) {
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
                    .where = concat(directory.string(), ", ", kWeightsIndex, " beside ", kSingleWeights),
                    .why = concat("expected one set of weights, got ",
                                  kSingleWeights,
                                  " and ",
                                  got,
                                  "; ",
                                  kSingleWeights,
                                  " is loaded, as transformers does"),
                    .fix = "delete the index, or the single file if the shards are the newer weights"};
}

} // namespace

bool is_there(const fs::path& path) {
  std::error_code ignored; // a path that cannot be asked about counts as absent
  return fs::exists(fs::symlink_status(path, ignored));
}

void require_directory(const fs::path& directory) {
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

StoredWeights open_weights_file(const fs::path& file, const SafetensorsLimits& limits) {
  StoredWeights weights;
  weights.files.push_back(SafetensorsFile::open(file, limits));
  append_tensors(weights.files.front(), 0, weights.tensors);
  std::ranges::sort(weights.tensors, {}, &StoredTensor::name);
  return weights;
}

StoredWeights open_stored_weights(const fs::path& directory, const SafetensorsLimits& limits) {
  const bool has_single = is_there(directory / kSingleWeights);
  const bool has_index = is_there(directory / kWeightsIndex);
  std::optional<Diagnostic> stale;
  if (has_single && has_index) {
    stale = stale_index(directory);
  }
  StoredWeights weights;
  if (has_index && (!has_single || !stale)) {
    const SafetensorsIndex index = parse_safetensors_index(read_text_file(directory / kWeightsIndex), kWeightsIndex);
    weights.files = open_shards(directory, index, kWeightsIndex, limits);
    weights.findings = check_shards(directory, index, kWeightsIndex, weights.files, limits);
    for (std::size_t i = 0; i < weights.files.size(); ++i) {
      append_tensors(weights.files[i], i, weights.tensors);
    }
    if (weights.tensors.size() > index.weight_map.size()) { // the index says which of two copies counts
      std::erase_if(weights.tensors, [&](const StoredTensor& tensor) {
        return index.weight_map.at(tensor.name) != weights.files[tensor.file].file().path().filename().string();
      });
    }
  } else {
    weights = open_weights_file(directory / kSingleWeights, limits);
    if (stale) {
      weights.findings.push_back(*std::move(stale));
    }
  }
  std::ranges::sort(weights.tensors, {}, &StoredTensor::name);
  return weights;
}

} // namespace tieshard
