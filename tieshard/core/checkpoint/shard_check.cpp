#include "tieshard/core/checkpoint/shard_check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

std::string file_name(const SafetensorsFile& file) {
  return file.file().path().filename().string();
}

/// What shards of one save have in common: of "model-00001-of-00002.safetensors", "model-" and "-of-00002.safetensors".
std::optional<std::pair<std::string, std::string>> shard_family(const std::string& file) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::size_t of = file.rfind("-of-");
  if (of == std::string::npos || !file.ends_with(".safetensors")) {
    return std::nullopt;
  }
  std::size_t number = of;
  while (number > 0 && is_digit(file[number - 1])) {
    --number;
  }
  return number == of ? std::nullopt : std::optional(std::pair(file.substr(0, number), file.substr(of)));
}

/// Shards of the same save that lie in the directory and that the index does not mention.
std::vector<SafetensorsFile> open_unmentioned(const fs::path& directory,
                                              const std::vector<std::string>& mentioned,
                                              const SafetensorsLimits& limits) {
  std::set<std::pair<std::string, std::string>> families;
  for (const std::string& file : mentioned) {
    if (auto family = shard_family(file)) {
      families.insert(*std::move(family));
    }
  }
  std::vector<SafetensorsFile> files;
  for (const std::string& name : list_directory(directory)) {
    const auto family = shard_family(name);
    if (family && families.contains(*family) && !std::ranges::binary_search(mentioned, name)) {
      files.push_back(SafetensorsFile::open(directory / name, limits));
    }
  }
  return files;
}

/// The shards, mentioned or not, that hold each tensor.
using Holders = std::map<std::string, std::vector<std::string>, std::less<>>;

void add_holders(const std::vector<SafetensorsFile>& files, Holders& holders) {
  for (const SafetensorsFile& file : files) {
    for (const TensorEntry& entry : file.header().tensors) {
      holders[entry.name].push_back(file_name(file));
    }
  }
}

void check_listed(const SafetensorsIndex& index, const std::string& where, const Holders& holders) {
  std::vector<std::string> absent;
  std::string first;
  for (const auto& [tensor, file] : index.weight_map) {
    const auto found = holders.find(tensor);
    const std::vector<std::string> actual = found == holders.end() ? std::vector<std::string>() : found->second;
    if (std::ranges::find(actual, file) == actual.end()) {
      if (absent.empty()) {
        first = concat("expected ",
                       format_name(tensor),
                       " in ",
                       file,
                       ", got it in ",
                       actual.empty() ? "no shard" : format_names(actual));
      }
      absent.push_back(tensor);
    }
  }
  if (!absent.empty()) {
    throw InputError({.code = Code::kTensorNotInShard,
                      .what = "a tensor is not in the file that the index names",
                      .where = concat(where, ", ", format_names(absent)),
                      .why = first,
                      .fix = "index and shards are not of one save; save or download all of them again"});
  }
}

void check_stored(const SafetensorsIndex& index, const std::string& where, const Holders& holders) {
  std::vector<std::string> unlisted;
  std::set<std::string> files;
  for (const auto& [tensor, actual] : holders) {
    if (!index.weight_map.contains(tensor)) {
      unlisted.push_back(tensor);
      files.insert(actual.begin(), actual.end());
    }
  }
  if (!unlisted.empty()) {
    throw InputError({.code = Code::kTensorNotInIndex,
                      .what = "a shard holds tensors that the index leaves out",
                      .where = concat(where, ", ", format_names({files.begin(), files.end()})),
                      .why = concat("expected every stored tensor in weight_map, got ",
                                    unlisted.size(),
                                    " that are not: ",
                                    format_names(unlisted)),
                      .fix = "index and shards are not of one save; save or download all of them again"});
  }
}

std::vector<Diagnostic> find_duplicates(const SafetensorsIndex& index,
                                        const std::string& where,
                                        const Holders& holders) {
  std::vector<Diagnostic> findings;
  std::map<std::pair<std::string, std::vector<std::string>>, std::vector<std::string>> tensors_by_files;
  for (const auto& [tensor, actual] : holders) {
    if (actual.size() > 1) {
      tensors_by_files[{index.weight_map.find(tensor)->second, actual}].push_back(tensor);
    }
  }
  for (const auto& [files, tensors] : tensors_by_files) {
    findings.push_back({.level = Level::kWarning,
                        .code = Code::kTensorInTwoShards,
                        .what = "a tensor is stored in more than one shard",
                        .where = concat(where, ", ", format_names(tensors)),
                        .why = concat("expected each tensor once, got it in ",
                                      format_names(files.second),
                                      "; the copy in ",
                                      files.first,
                                      " counts, which the index names"),
                        .fix = "save the model again; another loader may take the other copy"});
  }
  return findings;
}

/// Writers count a tensor that stands in two shards once or twice; both sums are right.
std::optional<Diagnostic> wrong_total(const SafetensorsIndex& index,
                                      const std::string& where,
                                      const std::vector<SafetensorsFile>& shards) {
  std::uint64_t mapped = 0;
  std::uint64_t stored = 0;
  for (const SafetensorsFile& shard : shards) {
    const std::string file = file_name(shard);
    for (const TensorEntry& entry : shard.header().tensors) {
      stored += entry.end - entry.begin;
      mapped += index.weight_map.find(entry.name)->second == file ? entry.end - entry.begin : 0;
    }
  }
  const auto says = [&index](std::uint64_t sum) {
    return *index.total_size == std::to_string(sum) || *index.total_size == concat(sum, ".0");
  };
  if (!index.total_size || says(mapped) || says(stored)) {
    return std::nullopt;
  }
  return Diagnostic{.level = Level::kWarning,
                    .code = Code::kTotalSize,
                    .what = "total_size of the index is not the sum of its tensors",
                    .where = concat(where, ", metadata.total_size"),
                    .why = concat("expected ", mapped, " bytes, got ", *index.total_size),
                    .fix = "nothing is missing; save the model again if a tool relies on total_size"};
}

} // namespace

std::vector<SafetensorsFile> open_shards(const fs::path& directory,
                                         const SafetensorsIndex& index,
                                         const std::string& where,
                                         const SafetensorsLimits& limits) {
  const std::vector<std::string> names = index.files();
  std::vector<std::string> missing;
  std::ranges::copy_if(names, std::back_inserter(missing), [&directory](const std::string& name) {
    std::error_code ignored; // a name that cannot be asked about is as good as missing
    return !fs::exists(directory / name, ignored);
  });
  if (!missing.empty()) {
    throw InputError(
        {.code = Code::kShardMissing,
         .what = "the index names a file that is not there",
         .where = concat(where, ", ", format_names(missing)),
         .why = concat(
             "expected ", names.size(), " shards in ", directory.string(), ", got ", names.size() - missing.size()),
         .fix = "download or copy the missing shards"});
  }
  std::vector<SafetensorsFile> files;
  files.reserve(names.size());
  for (const std::string& name : names) {
    files.push_back(SafetensorsFile::open(directory / name, limits));
  }
  return files;
}

std::vector<Diagnostic> check_shards(const fs::path& directory,
                                     const SafetensorsIndex& index,
                                     const std::string& where,
                                     const std::vector<SafetensorsFile>& shards,
                                     const SafetensorsLimits& limits) {
  Holders holders;
  add_holders(shards, holders);
  add_holders(open_unmentioned(directory, index.files(), limits), holders);
  check_listed(index, where, holders);
  check_stored(index, where, holders);
  std::vector<Diagnostic> findings = find_duplicates(index, where, holders);
  if (auto finding = wrong_total(index, where, shards)) {
    findings.push_back(*std::move(finding));
  }
  return findings;
}

} // namespace tieshard
