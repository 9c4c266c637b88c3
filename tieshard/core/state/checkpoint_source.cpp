#include "tieshard/core/state/checkpoint_source.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "tieshard/core/base/file.h"
#include "tieshard/core/state/checkpoint_store.h"
#include "tieshard/core/state/find_checkpoint.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

/// Absolute, without "." and ".." and links, as far as it is there.
fs::path plain(const fs::path& path) {
  std::error_code ignored; // then as it is given
  const fs::path absolute = fs::absolute(path, ignored);
  fs::path resolved = fs::weakly_canonical(absolute, ignored);
  if (ignored) {
    resolved = absolute.lexically_normal();
  }
  return resolved.has_filename() ? resolved : resolved.parent_path();
}

bool lies_in(const fs::path& path, const fs::path& directory) {
  return std::ranges::mismatch(directory, path).in1 == directory.end();
}

} // namespace

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

void require_outside(const CheckpointSource& source, const fs::path& out) {
  if (!source.manifest) {
    return;
  }
  const fs::path checkpoint = plain(source.directory);
  const fs::path store = checkpoint.parent_path();
  const bool of_run = CheckpointStore::step_of(checkpoint.filename().string()).has_value();
  if (lies_in(plain(out), checkpoint) || (of_run && store.filename() == "checkpoints" && lies_in(plain(out), store))) {
    throw InputError(
        {.code = Code::kBadFlag,
         .what = "an output directory lies among the checkpoints of a run",
         .where = out.string(),
         .why =
             concat("expected one outside of ", store.string(), ", where --resume looks for the newest, got one in it"),
         .fix = "name a directory outside of the run; --resume DIR takes it from there"});
  }
}

} // namespace tieshard
