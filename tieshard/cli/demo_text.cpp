#include "tieshard/cli/demo_text.h"

#include <algorithm>
#include <string>

#include "tieshard/core/base/file.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;

void add_markdown_of(const fs::path& directory, std::vector<fs::path>& found) {
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, failed)) {
    if (entry.is_regular_file(failed) && entry.path().extension() == ".md") {
      found.push_back(entry.path());
    }
  }
}

bool is_source_tree(const fs::path& directory) {
  std::error_code failed;
  return fs::exists(directory / "CMakeLists.txt", failed) && fs::is_directory(directory / "tieshard" / "cli", failed);
}

} // namespace

std::vector<fs::path> own_documents(const fs::path& program) {
  std::vector<fs::path> found;
  for (fs::path at = program.parent_path(); found.empty() && at != at.parent_path(); at = at.parent_path()) {
    if (is_source_tree(at)) {
      add_markdown_of(at, found);
      add_markdown_of(at / "docs", found);
      break;
    }
  }
  if (found.empty()) {
    const fs::path installed = program.parent_path().parent_path() / "share" / "doc" / "tieshard";
    add_markdown_of(installed, found);
    add_markdown_of(installed / "docs", found);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::size_t write_byte_tokens(const std::vector<fs::path>& files, const fs::path& tokens) {
  std::string little_endian;
  for (const fs::path& file : files) {
    for (const char byte : read_text_file(file)) {
      little_endian += byte;
      little_endian += '\0';
    }
  }
  write_text_file(tokens, little_endian);
  return little_endian.size() / 2;
}

} // namespace tieshard::cli
