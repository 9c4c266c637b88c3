#include "tieshard/core/state/checkpoint_source.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "tieshard/core/base/file.h"
#include "tieshard/core/state/find_checkpoint.h"

namespace tieshard {

CheckpointSource find_source(const std::filesystem::path& in, bool verify) {
  std::error_code ignored; // opening says what is wrong with it
  const bool recorded = std::filesystem::exists(in / Manifest::kFileName, ignored);
  if (!recorded && !verify && std::filesystem::is_directory(in, ignored)) {
    const std::vector<std::string> names = list_directory(in);
    if (std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(".safetensors"); })) {
      return {.directory = in};
    }
  }
  FoundCheckpoint found = find_checkpoint(in, verify ? Verify::kHashes : Verify::kSizes);
  return {.directory = std::move(found.directory),
          .manifest = std::move(found.manifest),
          .findings = std::move(found.findings)};
}

} // namespace tieshard
