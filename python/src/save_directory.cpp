#include "python/src/save_directory.h"

#include <algorithm>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/companion_files.h"
#include "tieshard/core/state/manifest.h"
#include "tieshard/core/state/trainer_state.h"

namespace tieshard::python {
namespace {

/// The files of a staged checkpoint that hold no tensors.
std::vector<FileRecord> records_beside_shards(const std::filesystem::path& staging) {
  std::vector<FileRecord> files;
  for (const std::string& name : list_directory(staging)) {
    if (!name.starts_with(".") && !name.ends_with(".safetensors")) {
      files.push_back(record_of(staging, name));
    }
  }
  return files;
}

} // namespace

SaveDirectory::SaveDirectory(const std::filesystem::path& directory, std::int64_t step)
    : lock_(DirectoryLock::take(directory)), store_(directory), step_(step) {}

std::filesystem::path SaveDirectory::stage(std::uint64_t bytes) const {
  return store_.stage(step_, bytes);
}

std::vector<std::filesystem::path> SaveDirectory::publish(const BesideShards& beside, std::int64_t keep) const {
  const std::filesystem::path staging = store_.staging_of(step_);
  Manifest manifest = parse_manifest(beside.manifest, (staging / Manifest::kFileName).string());
  const std::filesystem::path trainer = staging / TrainerState::kFileName;
  write_text_file(trainer, to_json(parse_trainer_state(beside.trainer, trainer.string())));
  if (!beside.source.empty()) {
    copy_companion_files(beside.source, staging);
  }
  for (const auto& [name, text] : beside.texts) {
    write_text_file(staging / name, text);
  }
  std::ranges::move(records_beside_shards(staging), std::back_inserter(manifest.files));
  std::ranges::sort(manifest.files, {}, &FileRecord::name);
  write_text_file(staging / Manifest::kFileName, to_json(manifest));
  std::vector<std::filesystem::path> set_aside = store_.publish(step_);
  if (keep > 0) {
    store_.prune(keep);
  }
  return set_aside;
}

void SaveDirectory::discard() const noexcept {
  store_.discard(step_);
}

void SaveDirectory::release() noexcept {
  lock_.reset();
}

} // namespace tieshard::python
