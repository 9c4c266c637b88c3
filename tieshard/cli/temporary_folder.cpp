#include "tieshard/cli/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "tieshard/core/base/error.h"

namespace tieshard::cli {

std::filesystem::path make_temporary_folder(const std::string& purpose) {
  std::string pattern = (std::filesystem::temp_directory_path() / concat("tieshard-", purpose, "-XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw PeerError({.code = Code::kIoFailed,
                     .what = "a temporary folder could not be made",
                     .where = pattern,
                     .why = std::strerror(errno),
                     .fix = "set TMPDIR to a directory that can be written"});
  }
  return pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

} // namespace tieshard::cli
