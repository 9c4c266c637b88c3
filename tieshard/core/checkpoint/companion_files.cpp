#include "tieshard/core/checkpoint/companion_files.h"

#include <string>

#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

bool is_companion(const std::string& name) {
  const std::string extension = fs::path(name).extension().string();
  if (name == "config.json" || name == "manifest.json" || name == "trainer.json" || name.ends_with(".index.json") ||
      name.starts_with(".") || name.starts_with("adapter_")) {
    return false;
  }
  return extension == ".json" || extension == ".txt" || extension == ".model" || extension == ".jinja";
}

} // namespace

std::vector<fs::path> companion_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const std::string& name : list_directory(directory)) {
    if (is_companion(name) && fs::is_regular_file(directory / name)) {
      files.push_back(directory / name);
    }
  }
  return files;
}

void copy_companion_files(const fs::path& from, const fs::path& to) {
  for (const fs::path& file : companion_files(from)) {
    copy_durably(file, to / file.filename());
  }
}

} // namespace tieshard
