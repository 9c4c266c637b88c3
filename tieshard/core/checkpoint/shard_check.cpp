#include "tieshard/core/checkpoint/shard_check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/open_files.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

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

/// Names of shards of the same save that lie in the directory and that the index does not mention.
std::vector<std::string> find_unmentioned(const fs::path& directory, const std::vector<std::string>& mentioned) {
  std::set<std::pair<std::string, std::string>> families;
  for (const std::string& file : mentioned) {
    if (auto family = shard_family(file)) {
      families.insert(*std::move(family));
    }
  }
  std::vector<std::string> names;
  for (const std::string& name : list_directory(directory)) {
    const auto family = shard_family(name);
    if (family && families.contains(*family) && !std::ranges::binary_search(mentioned, name)) {
      names.push_back(name);
    }
  }
  return names;
}

std::vector<fs::path> in_directory(const fs::path& directory, const std::vector<std::string>& names) {
  std::vector<fs::path> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) {
    paths.push_back(directory / name);
  }
  return paths;
}

/// A tensor in a shard, mentioned or not.
struct Holding {
  std::string_view tensor;
  std::string_view file; ///< its name
  std::uint64_t bytes = 0;
  bool mentioned = true; ///< whether the index mentions the file
};

/// A tensor with all that is known of it: where the index puts it, and which shards hold it.
struct Sighting {
  std::string_view tensor;
  const std::string* listed = nullptr; ///< file that the index names; null when it leaves the tensor out
  std::span<const Holding> holders{};

  bool held_by(std::string_view file) const {
    return std::ranges::any_of(holders, [file](const Holding& holding) { return holding.file == file; });
  }
  std::vector<std::string> holder_names() const {
    std::vector<std::string> names;
    for (const Holding& holding : holders) {
      names.emplace_back(holding.file);
    }
    return names;
  }
};

void add_holdings(const std::vector<SafetensorsFile>& files,
                  const std::vector<std::string>& names,
                  bool mentioned,
                  std::vector<Holding>& holdings) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const TensorEntry& entry : files[i].header().tensors) {
      holdings.push_back(
          {.tensor = entry.name, .file = names[i], .bytes = entry.end - entry.begin, .mentioned = mentioned});
    }
  }
}

/// Both sides side by side, in the order of the tensors' names. `holdings` are sorted by tensor.
std::vector<Sighting> merge(const SafetensorsIndex& index, std::span<const Holding> holdings) {
  std::vector<Sighting> sightings;
  sightings.reserve(index.weight_map.size());
  auto listed = index.weight_map.begin();
  for (auto held = holdings.begin(); held != holdings.end() || listed != index.weight_map.end();) {
    Sighting sighting;
    const bool take_listed =
        listed != index.weight_map.end() && (held == holdings.end() || listed->first <= held->tensor);
    if (take_listed) {
      sighting.tensor = listed->first;
      sighting.listed = &listed->second;
      ++listed;
    } else {
      sighting.tensor = held->tensor;
    }
    const auto first = held;
    while (held != holdings.end() && held->tensor == sighting.tensor) {
      ++held;
    }
    sighting.holders = {first, held};
    sightings.push_back(sighting);
  }
  return sightings;
}

void check_listed(const std::string& where, const std::vector<Sighting>& sightings) {
  std::vector<std::string> absent;
  std::string first;
  for (const Sighting& sighting : sightings) {
    if (sighting.listed == nullptr || sighting.held_by(*sighting.listed)) {
      continue;
    }
    if (absent.empty()) {
      first = concat("expected ",
                     format_name(sighting.tensor),
                     " in ",
                     *sighting.listed,
                     ", got it in ",
                     sighting.holders.empty() ? "no shard" : format_names(sighting.holder_names()));
    }
    absent.emplace_back(sighting.tensor);
  }
  if (!absent.empty()) {
    throw InputError({.code = Code::kTensorNotInShard,
                      .what = "a tensor is not in the file that the index names",
                      .where = concat(where, ", ", format_names(absent)),
                      .why = first,
                      .fix = "index and shards are not of one save; save or download all of them again"});
  }
}

void check_stored(const std::string& where, const std::vector<Sighting>& sightings) {
  std::vector<std::string> unlisted;
  std::set<std::string, std::less<>> files;
  for (const Sighting& sighting : sightings) {
    if (sighting.listed == nullptr) {
      unlisted.emplace_back(sighting.tensor);
      for (const Holding& holding : sighting.holders) {
        files.emplace(holding.file);
      }
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

std::vector<Diagnostic> find_duplicates(const std::string& where, const std::vector<Sighting>& sightings) {
  std::vector<Diagnostic> findings;
  std::map<std::pair<std::string, std::vector<std::string>>, std::vector<std::string>> tensors_by_files;
  for (const Sighting& sighting : sightings) {
    if (sighting.holders.size() > 1) {
      tensors_by_files[{*sighting.listed, sighting.holder_names()}].emplace_back(sighting.tensor);
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
                                      const std::vector<Sighting>& sightings) {
  std::uint64_t mapped = 0;
  std::uint64_t stored = 0;
  for (const Sighting& sighting : sightings) {
    for (const Holding& holding : sighting.holders) {
      stored += holding.mentioned ? holding.bytes : 0;
      mapped += holding.file == *sighting.listed ? holding.bytes : 0;
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
  return open_files(in_directory(directory, names), limits);
}

std::vector<Diagnostic> check_shards(const fs::path& directory,
                                     const SafetensorsIndex& index,
                                     const std::string& where,
                                     const std::vector<SafetensorsFile>& shards,
                                     const SafetensorsLimits& limits) {
  const std::vector<std::string> mentioned = index.files();
  const std::vector<std::string> unmentioned = find_unmentioned(directory, mentioned);
  const std::vector<SafetensorsFile> others = open_files(in_directory(directory, unmentioned), limits);
  std::vector<Holding> holdings;
  add_holdings(shards, mentioned, true, holdings);
  add_holdings(others, unmentioned, false, holdings);
  std::ranges::stable_sort(holdings, {}, &Holding::tensor);
  const std::vector<Sighting> sightings = merge(index, holdings);
  check_listed(where, sightings);
  check_stored(where, sightings);
  std::vector<Diagnostic> findings = find_duplicates(where, sightings);
  if (auto finding = wrong_total(index, where, sightings)) {
    findings.push_back(*std::move(finding));
  }
  return findings;
}

} // namespace tieshard
