#include "tieshard/core/state/find_checkpoint.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "tieshard/core/base/file.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/checkpoint_store.h"
#include "tieshard/core/state/recorded_state.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr int kMostTries = 20; ///< to find a checkpoint of a run that removes them at the same time

/// What is wrong with one file; nothing when it is as recorded.
std::optional<std::string> damage(const fs::path& directory, const FileRecord& recorded, Verify verify) {
  std::error_code error;
  const fs::path path = directory / recorded.name;
  if (!fs::is_regular_file(path, error)) {
    return concat(recorded.name, " is missing");
  }
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error) {
    return concat(recorded.name, " cannot be looked at (", error.message(), ")");
  }
  if (bytes != recorded.bytes) {
    return concat(recorded.name, " has ", bytes, " bytes and not ", recorded.bytes);
  }
  if (verify == Verify::kHashes) {
    const FileRecord found = record_of(directory, recorded.name);
    if (found.xxh128 != recorded.xxh128) {
      return concat(recorded.name, " has other bytes (xxh128 ", found.xxh128, " and not ", recorded.xxh128, ")");
    }
  }
  return std::nullopt;
}

std::vector<std::string> damages(const fs::path& directory, const Manifest& manifest, Verify verify) {
  std::vector<std::string> damages;
  std::set<std::string> recorded;
  for (const FileRecord& file : manifest.files) {
    recorded.insert(file.name);
    if (const auto found = damage(directory, file, verify)) {
      damages.push_back(*found);
    }
  }
  for (const std::string& name : list_directory(directory)) {
    if (name.ends_with(".safetensors") && !recorded.contains(name)) {
      damages.push_back(concat(format_name(name), " is not in the manifest"));
    }
  }
  return damages;
}

Manifest open_complete(const fs::path& directory, Verify verify) {
  Manifest manifest = open_manifest(directory, verify);
  require_recorded_state(directory, manifest);
  return manifest;
}

/// The newest complete one; what stands in the way of each newer one goes to `found`. False when there is none.
bool find_newest(const CheckpointStore& store,
                 const std::vector<std::int64_t>& steps,
                 Verify verify,
                 FoundCheckpoint& found) {
  for (const std::int64_t step : steps) {
    found.directory = store.path_of(step);
    try {
      found.manifest = open_complete(found.directory, verify);
      return true;
    } catch (const InternalError&) {
      throw;
    } catch (const Error& refused) {
      found.findings.push_back(refused.diagnostic());
      found.findings.back().level = Level::kWarning;
    }
  }
  return false;
}

/// Whether one of them has been removed since it was looked at.
bool any_removed(const std::vector<std::int64_t>& steps, const CheckpointStore& store) {
  return std::ranges::any_of(steps, [&](std::int64_t step) { return !is_there(store.path_of(step)); });
}

[[noreturn]] void throw_nothing_found(const fs::path& given, const std::vector<Diagnostic>& findings) {
  std::vector<std::string> reasons;
  for (const Diagnostic& finding : findings) {
    reasons.push_back(concat(finding.where, ": ", finding.why));
  }
  const std::string got = reasons.empty() ? "no directory checkpoints/step-* and no step-*" : format_names(reasons);
  throw InputError({.code = Code::kNoCheckpoint,
                    .what = "there is no training checkpoint to go on from",
                    .where = given.string(),
                    .why = concat("expected a complete checkpoint, got ", got),
                    .fix = "name the directory of a run that saved, or one of its checkpoints/step-*"});
}

} // namespace

Manifest open_manifest(const fs::path& directory, Verify verify) {
  const fs::path path = directory / Manifest::kFileName;
  std::error_code error;
  if (!fs::exists(path, error)) {
    const bool is_there = fs::is_directory(directory, error);
    throw InputError({.code = Code::kNoCheckpoint,
                      .what = "a directory is no training checkpoint",
                      .where = directory.string(),
                      .why = concat("expected ",
                                    Manifest::kFileName,
                                    " in it, got ",
                                    is_there ? "a directory without it" : "no such directory"),
                      .fix = "name the directory of a run, or one of its checkpoints/step-*"});
  }
  Manifest manifest = parse_manifest(read_text_file(path), path.string());
  if (const std::vector<std::string> found = damages(directory, manifest, verify); !found.empty()) {
    throw InputError(
        {.code = Code::kCheckpointIncomplete,
         .what = "a training checkpoint is not what its manifest says",
         .where = directory.string(),
         .why = concat("expected ", manifest.files.size(), " files as written, got: ", format_names(found)),
         .fix = "copy the checkpoint again, or take another one of the run"});
  }
  return manifest;
}

FoundCheckpoint find_checkpoint(const fs::path& given, Verify verify) {
  std::error_code error;
  if (fs::exists(given / Manifest::kFileName, error)) {
    return {.directory = given, .manifest = open_complete(given, verify), .findings = {}};
  }
  const fs::path inside = given / "checkpoints";
  const CheckpointStore store(fs::is_directory(inside, error) ? inside : given);
  for (int again = 0;; ++again) {
    FoundCheckpoint found;
    const std::vector<std::int64_t> steps = store.steps();
    const bool is_found = find_newest(store, steps, verify, found);
    const bool missed = steps.empty() && store.latest(); // the listing came between a new one and the one before
    if (again < kMostTries && (missed || (!found.findings.empty() && any_removed(steps, store)))) {
      continue;
    }
    if (!is_found) {
      throw_nothing_found(given, found.findings);
    }
    return found;
  }
}

} // namespace tieshard
