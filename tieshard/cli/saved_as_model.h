// tieshard/cli/saved_as_model.h
//
// A training checkpoint in the form of a model, for verbs that ask for names, shapes and ties and for no value.
//
// Flow: plan -> [this] -> core/state/saved_model.h, core/checkpoint/safetensors_writer.h

#pragma once

#include <filesystem>
#include <string>

namespace tieshard::cli {

/// Where a verb finds a model: `path` itself, or for a training checkpoint a temporary directory with its config and a
/// weights file that is a header and a hole, as an export of it would be laid out. Removed at the end.
class SavedAsModel {
 public:
  /// @throws InputError what open_saved_model throws; PeerError io-failed
  explicit SavedAsModel(const std::string& path);
  ~SavedAsModel();
  SavedAsModel(const SavedAsModel&) = delete;
  SavedAsModel& operator=(const SavedAsModel&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  std::filesystem::path path_;
  bool temporary_ = false;
};

} // namespace tieshard::cli
