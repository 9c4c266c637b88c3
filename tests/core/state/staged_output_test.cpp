#include "tieshard/core/state/staged_output.h"

#include <gtest/gtest.h>

#include "tieshard/core/base/file.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

void expect_in_use(const fs::path& out) {
  expect_refusal<InputError>(Code::kDirectoryInUse, {out.string()}, [&] { StagedOutput(out, 1); });
}

TEST(StagedOutput, RefusesASecondJobUntilTheFirstOneIsGone) {
  const TempDir temp;
  const fs::path out = temp / "out";
  {
    StagedOutput staged(out, 1);
    write_text_file(staged.path() / "file", "of the first");
    expect_in_use(out);
    EXPECT_TRUE(fs::exists(staged.path() / "file"));
    staged.publish();
    fs::rename(out, temp / "elsewhere"); // so that only the lock can refuse
    expect_in_use(out);
    fs::rename(temp / "elsewhere", out);
  }
  EXPECT_EQ(list_directory(temp.path()), std::vector<std::string>{"out"});
  EXPECT_EQ(list_directory(out), std::vector<std::string>{"file"});
  expect_refusal<InputError>(Code::kOutputExists, {out.string()}, [&] { StagedOutput(out, 1); });
  EXPECT_EQ(list_directory(temp.path()), std::vector<std::string>{"out"});
}

TEST(StagedOutput, ThatIsNotPublishedLeavesNothing) {
  const TempDir temp;
  {
    const StagedOutput staged(temp / "out", 1);
    write_text_file(staged.path() / "file", "half");
  }
  EXPECT_TRUE(fs::is_empty(temp.path()));
  EXPECT_THROW(StagedOutput(temp / "out", std::uint64_t{1} << 62), PeerError);
  EXPECT_TRUE(fs::is_empty(temp.path()));
}

TEST(StagedOutput, RemovesWhatAKilledJobLeft) {
  const TempDir temp;
  fs::create_directories(temp / ".out.staging" / "left");
  write_text_file(temp / ".out.lock", "process 1 of host gone");
  StagedOutput staged(temp / "out", 1);
  EXPECT_TRUE(fs::is_empty(staged.path()));
  staged.publish();
}

} // namespace
} // namespace tieshard
