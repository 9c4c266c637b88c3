#include "tieshard/core/base/writable_directory.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

TEST(WritableDirectory, IsLeftAsItWas) {
  const TempDir dir;
  require_writable_directory(dir.path(), "--out");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

/// Of root too, whom permission bits do not stop: /proc takes no files of anybody.
TEST(WritableDirectory, ThatTakesNoFilesIsRefusedWithTheKernelsReason) {
  expect_refusal<InputError>(
      Code::kBadFlag, {"--out \"/proc\"", "No such file"}, [] { require_writable_directory("/proc", "--out"); });
}

TEST(WritableDirectory, ThatIsAFileIsRefusedWithTheKernelsReason) {
  const TempDir dir;
  const fs::path file = dir.write("taken", "");
  expect_refusal<InputError>(
      Code::kBadFlag, {file.string(), "Not a directory"}, [&] { require_writable_directory(file, "--out"); });
}

} // namespace
} // namespace tieshard
