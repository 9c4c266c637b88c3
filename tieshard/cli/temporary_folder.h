// tieshard/cli/temporary_folder.h
//
// A folder of a verb's own under TMPDIR.
//
// Flow: demo, ladder, man_page, saved_as_model -> [this] -> the kernel

#pragma once

#include <filesystem>
#include <string>

namespace tieshard::cli {

/// Makes TMPDIR/tieshard-<purpose>-<six letters>, which only this user can enter. @throws PeerError io-failed
std::filesystem::path make_temporary_folder(const std::string& purpose);

/// One that is removed at the end, with all that is in it.
class TemporaryFolder {
 public:
  /// @throws PeerError io-failed
  explicit TemporaryFolder(const std::string& purpose) : path_(make_temporary_folder(purpose)) {}
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

} // namespace tieshard::cli
