#include "tieshard/core/doctor/file_check.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_index.h"
#include "tieshard/core/families/family.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_file(const fs::path& path) {
  std::error_code ignored; // a path that cannot be asked about counts as absent
  return fs::is_regular_file(path, ignored);
}

/// The files of the index; nothing when there is none that can be read, which opening the directory has reported.
std::optional<std::vector<std::string>> indexed_files(const fs::path& directory) {
  FindingList reported_before;
  std::vector<std::string> files;
  const bool read = is_file(directory / kIndex) && reported_before.collect([&] {
    files = parse_safetensors_index(read_text_file(directory / kIndex), kIndex).files();
  });
  return read ? std::optional(files) : std::nullopt;
}

std::vector<std::string> weight_files(const fs::path& directory) {
  if (is_file(directory / kSingle)) {
    return {kSingle}; // it wins over an index
  }
  if (const auto indexed = indexed_files(directory)) {
    return *indexed;
  }
  std::vector<std::string> files;
  std::ranges::copy_if(list_directory(directory), std::back_inserter(files), [](const std::string& name) {
    return name.starts_with("model-") && name.ends_with(".safetensors");
  });
  return files;
}

} // namespace

void check_config(const fs::path& directory, FindingList& findings) {
  if (!is_file(directory / kConfig)) {
    return;
  }
  findings.collect([&] {
    const HfConfig config = HfConfig::parse(read_text_file(directory / kConfig), kConfig);
    if (const Family* family = find_family(config)) {
      family->table(config);
    }
  });
}

void check_weight_files(const fs::path& directory, const SafetensorsLimits& limits, FindingList& findings) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    return;
  }
  for (const std::string& file : weight_files(directory)) {
    if (is_file(directory / file)) {
      findings.collect([&] { SafetensorsFile::open(directory / file, limits); });
    }
  }
}

} // namespace tieshard
