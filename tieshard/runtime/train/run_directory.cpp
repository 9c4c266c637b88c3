#include "tieshard/runtime/train/run_directory.h"

#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/writable_directory.h"
#include "tieshard/core/state/checkpoint_store.h"
#include "tieshard/core/state/find_checkpoint.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

/// `path` is `directory` or lies in it.
bool is_within(const fs::path& path, const fs::path& directory) {
  std::error_code error;
  const fs::path relative =
      fs::weakly_canonical(path, error).lexically_relative(fs::weakly_canonical(directory, error));
  return !relative.empty() && *relative.begin() != "..";
}

/// @param again  the run begins again where it saved nothing: what a job leaves that died before is no reason to refuse
void refuse_earlier_run(const fs::path& out, bool again) {
  std::vector<const char*> names{"summary.json", "export", "adapter"};
  if (!again) {
    names.insert(names.end(), {"metrics.jsonl", "checkpoints"});
  }
  std::error_code error;
  for (const char* name : names) {
    if (fs::exists(out / name, error)) {
      throw InputError({.code = Code::kOutputExists,
                        .what = "the output directory holds a run already",
                        .where = (out / name).string(),
                        .why = again ? "a run that has ended and saved nothing cannot be gone on with"
                                     : "a run never writes into another one",
                        .fix = again ? "choose another --out, or remove this one"
                                     : "go on with it (--resume), choose another --out, or remove this one"});
    }
  }
}

void make_directory(const fs::path& out) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error || !fs::is_directory(out, error)) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "the output directory could not be made",
                      .where = concat("--out \"", out.string(), "\""),
                      .why = error ? error.message() : "something that is no directory has this name",
                      .fix = "give a directory that can be made, with a parent that can be written"});
  }
  require_writable_directory(out, "--out");
}

/// The directory, or the nearest above it that is there, takes entries, as far as permissions tell.
void require_place(const fs::path& out) {
  std::error_code error;
  fs::path there = fs::absolute(out);
  while (!fs::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  if (!fs::is_directory(there, error) || ::access(there.c_str(), W_OK | X_OK) != 0) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "the output directory could not be made",
                      .where = concat("--out \"", out.string(), "\""),
                      .why = concat("expected a directory that can be written, got ", there.string()),
                      .fix = "give a directory that can be made, with a parent that can be written"});
  }
}

/// What rank 0 finds: whether the run goes on from something.
bool find_start(const TrainConfig& config) {
  if (!config.resume) {
    return false;
  }
  const bool own = config.resume->empty();
  const fs::path given = own ? config.out : *config.resume;
  return !own || !CheckpointStore(checkpoints_of(given)).steps().empty();
}

/// On rank 0. @returns where under `given` the checkpoint lies; empty for a run from the start
std::string open_here(const TrainConfig& config, const fs::path& given, RunDirectory& run) {
  const auto find = [&] {
    FoundCheckpoint found = find_checkpoint(given, config.verify ? Verify::kHashes : Verify::kSizes);
    run.findings = std::move(found.findings);
    return found.directory.lexically_relative(given).string();
  };
  const auto lock = [&] {
    make_directory(config.out);
    run.lock = DirectoryLock::take(config.out);
  };
  if (find_start(config) && is_within(given, config.out)) {
    lock(); // first: the job that holds it may be saving what is to be found
    return find();
  }
  const bool again = config.resume && config.resume->empty();
  refuse_earlier_run(config.out, again); // before anything is made
  const std::string found_at = find_start(config) ? find() : "";
  lock();
  refuse_earlier_run(config.out, again); // a job may have come and gone
  return found_at;
}

} // namespace

fs::path checkpoints_of(const fs::path& run) {
  return run / "checkpoints";
}

RunDirectory open_run_directory(const TrainConfig& config, const DeviceMesh& mesh) {
  RunDirectory run;
  const fs::path given = !config.resume || config.resume->empty() ? config.out : *config.resume;
  std::string found_at; // under `given`, which may be another path on another host
  agree(mesh, "output directory", [&] {
    if (mesh.rank() == 0) {
      found_at = open_here(config, given, run);
      if (!config.flags_json.empty()) {
        write_text_file(config.out / "config.json", config.flags_json);
      }
    }
  });
  found_at = all_gather_text(mesh, found_at, CollectivePurpose::named("resume")).front();
  if (!found_at.empty()) {
    run.resume = found_at == "." ? given : given / found_at;
  }
  return run;
}

std::optional<fs::path> check_run_directory(const TrainConfig& config) {
  const fs::path given = !config.resume || config.resume->empty() ? config.out : *config.resume;
  std::optional<fs::path> found;
  if (find_start(config)) {
    found = find_checkpoint(given, config.verify ? Verify::kHashes : Verify::kSizes).directory;
  }
  if (!found || !is_within(given, config.out)) {
    refuse_earlier_run(config.out, config.resume && config.resume->empty());
  }
  require_place(config.out);
  return found;
}

} // namespace tieshard
