#include "tieshard/core/base/staged_directory.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

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

} // namespace
} // namespace tieshard
