#include "tieshard/core/base/writable_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard {

void require_writable_directory(const std::filesystem::path& directory, const std::string& flag) {
  std::string name = (directory / ".tieshard-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  if (file < 0) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a directory cannot be written",
                      .where = concat(flag, " \"", directory.string(), "\""),
                      .why = concat("expected to make a file in it, got: ", std::strerror(errno)),
                      .fix = "give a directory that this user can write, on a mount that is not read-only"});
  }
  ::close(file);
  ::unlink(name.c_str());
}

} // namespace tieshard
