#include "tieshard/core/state/checkpoint_source.h"

#include <gtest/gtest.h>

#include "tieshard/core/state/checkpoint_store.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/state/written_checkpoint.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail() {
  throw InputError({.code = Code::kFileUnreadable,
                    .what = "a file is there but cannot be opened",
                    .where = "a file",
                    .why = "expected it, got nothing",
                    .fix = "none"});
}

TEST(UseSource, TakesTheNextOneWhereTheRunHasRemovedTheFirst) {
  const TempDir temp;
  const CheckpointStore store(temp / "checkpoints");
  write_checkpoint(store.path_of(1), 1);
  std::vector<std::int64_t> used;
  const fs::path directory = use_source(temp.path(), false, [&](const CheckpointSource& source) {
    used.push_back(source.manifest->step);
    if (source.manifest->step < 3) {
      write_checkpoint(store.path_of(used.back() + 1), used.back() + 1);
      fs::remove_all(source.directory);
      fail();
    }
    return source.directory;
  });
  EXPECT_EQ(directory, store.path_of(3));
  EXPECT_EQ(used, (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(UseSource, TriesNothingAgainWhereTheCheckpointIsThereOrWasNamed) {
  const TempDir temp;
  const CheckpointStore store(temp / "checkpoints");
  write_checkpoint(store.path_of(1), 1);
  int uses = 0;
  const auto use = [&](const fs::path& in, bool removes) {
    expect_refusal<InputError>(Code::kFileUnreadable, {}, [&] {
      use_source(in, false, [&](const CheckpointSource& source) {
        ++uses;
        if (removes) {
          fs::remove_all(source.directory);
        }
        fail();
        return 0;
      });
    });
  };
  use(temp.path(), false);
  EXPECT_EQ(uses, 1);
  use(store.path_of(1), true);
  EXPECT_EQ(uses, 2);
}

} // namespace
} // namespace tieshard
