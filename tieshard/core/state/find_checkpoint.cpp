#include "tieshard/core/state/find_checkpoint.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "tieshard/core/base/file.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/checkpoint_store.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

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
    return {.directory = given, .manifest = open_manifest(given, verify), .findings = {}};
  }
  const fs::path inside = given / "checkpoints";
  const CheckpointStore store(fs::is_directory(inside, error) ? inside : given);
  FoundCheckpoint found;
  for (const std::int64_t step : store.steps()) {
    found.directory = store.path_of(step);
    try {
      found.manifest = open_manifest(found.directory, verify);
      return found;
    } catch (const InternalError&) {
      throw;
    } catch (const Error& refused) {
      found.findings.push_back(refused.diagnostic());
      found.findings.back().level = Level::kWarning;
    }
  }
  throw_nothing_found(given, found.findings);
}

} // namespace tieshard
