// tieshard/cli/saved_as_model.h
//
// A training checkpoint in the form of a model, for the verbs that take models.
//
// Flow: plan, check, diff, load -> [this] -> core/state/saved_model.h, core/state/export_checkpoint.h, temporary_folder

#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tieshard/cli/temporary_folder.h"
#include "tieshard/core/base/error.h"

namespace tieshard::cli {

/// What of the weights a verb reads.
enum class SavedPart {
  kHeaders, ///< names, shapes, dtypes: the weights file is a header and a hole
  kValues   ///< all: put together as `tieshard merge` does, which takes the model's size on the disk of TMPDIR
};

/// Where a verb finds a model: `path` itself, or for a training checkpoint a temporary directory with its config and
/// its weights in their stored dtypes. Removed at the end.
class SavedAsModel {
 public:
  /// @throws InputError what open_saved_model and export_checkpoint throw; PeerError io-failed, disk-full
  SavedAsModel(const std::string& path, SavedPart part);

  const std::filesystem::path& path() const {
    return path_;
  }

  /// What is wrong with the newest checkpoint of a run, where an older one was taken, and which that is.
  const std::vector<Diagnostic>& findings() const {
    return findings_;
  }

 private:
  std::filesystem::path path_;
  std::vector<Diagnostic> findings_{};
  std::optional<TemporaryFolder> temporary_{}; ///< nothing: `path` is a model
};

} // namespace tieshard::cli
