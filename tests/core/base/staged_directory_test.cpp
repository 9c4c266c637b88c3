#include "tieshard/core/base/staged_directory.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

TEST(StagedDirectory, AppearsUnderItsNameWhenItIsPublishedAndNotBefore) {
  const TempDir temp;
  const fs::path out = temp.path() / "out";
  std::ofstream(stage_directory(out) / "file") << "text";
  EXPECT_FALSE(fs::exists(out));
  publish_directory(out);
  EXPECT_TRUE(fs::exists(out / "file"));
  EXPECT_FALSE(fs::exists(staging_of(out)));
}

TEST(StagedDirectory, WhatABrokenRunLeftIsRemovedAndATrailingSlashMeansNothing) {
  const TempDir temp;
  const fs::path out = temp.path() / "out";
  std::ofstream(stage_directory(out) / "old") << "text";
  EXPECT_EQ(stage_directory(out / ""), staging_of(out));
  EXPECT_TRUE(fs::is_empty(staging_of(out)));
  publish_directory(out / "");
  EXPECT_TRUE(fs::is_directory(out));
}

TEST(StagedDirectory, NeedsAName) {
  for (const char* name : {"", ".", "..", "/", "./", "a/..", "a/../"}) {
    try {
      require_new_name(name);
      ADD_FAILURE() << "nothing was thrown for " << name;
    } catch (const InputError& error) {
      EXPECT_EQ(error.diagnostic().code, Code::kBadFlag) << name;
    }
  }
  EXPECT_NO_THROW(require_new_name("out/"));
  EXPECT_NO_THROW(require_new_name("/above/.hidden"));
}

TEST(StagedDirectory, IsRefusedWhereSomethingIs) {
  const TempDir temp;
  fs::create_directories(temp.path() / "out");
  try {
    stage_directory(temp.path() / "out");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostic().code, Code::kOutputExists);
  }
}

TEST(StagedDirectory, ReplacesAnOlderOneOfItsNameAndLeavesNothingOfThat) {
  const TempDir temp;
  const fs::path out = temp.path() / "out";
  std::ofstream(stage_directory(out) / "old") << "text";
  publish_directory(out);
  fs::create_directories(staging_of(out));
  std::ofstream(staging_of(out) / "new") << "text";
  replace_directory(out);
  EXPECT_TRUE(fs::exists(out / "new"));
  EXPECT_FALSE(fs::exists(out / "old"));
  EXPECT_THAT(temp.names(), testing::ElementsAre("out"));
}

TEST(StagedDirectory, ReplacesNothingWhereNothingIs) {
  const TempDir temp;
  std::ofstream(stage_directory(temp.path() / "out") / "file") << "text";
  replace_directory(temp.path() / "out");
  EXPECT_TRUE(fs::exists(temp.path() / "out" / "file"));
  EXPECT_THAT(temp.names(), testing::ElementsAre("out"));
}

TEST(StagedDirectory, IsRemovedWithAllThatIsInItAndWithWhatAnEarlierRemovalLeft) {
  const TempDir temp;
  const fs::path out = temp.path() / "out";
  fs::create_directories(out / "deep");
  fs::create_directories(removal_of(out) / "half");
  remove_directory(out);
  EXPECT_TRUE(fs::is_empty(temp.path()));
}

TEST(StagedDirectory, ThatIsNotThereCannotBeRemoved) {
  const TempDir temp;
  expect_refusal<PeerError>(Code::kIoFailed, {"out", "No such file"}, [&] { remove_directory(temp.path() / "out"); });
}

} // namespace
} // namespace tieshard
