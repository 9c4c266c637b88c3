#include "tieshard/core/state/checkpoint_store.h"

#include <map>

#include "tieshard/core/state/find_checkpoint.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/state/written_checkpoint.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class Store : public testing::Test {
 protected:
  std::vector<fs::path> save(std::int64_t step, char mark = 1) const {
    write_checkpoint(store.stage(step, 100), step, mark);
    return store.publish(step);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(store.directory())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  std::string shard_of(std::int64_t step) const {
    std::ifstream file(store.path_of(step) / "shard-00001-model-00001-of-00001.safetensors");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TempDir temp;
  const CheckpointStore store{temp.path() / "run" / "checkpoints"};
};

TEST_F(Store, NamesDirectoriesSoThatTheySortByStep) {
  EXPECT_EQ(CheckpointStore::name_of(200), "step-000000200");
  EXPECT_EQ(CheckpointStore::name_of(12'345'678'901), "step-12345678901");
  EXPECT_EQ(store.path_of(200).filename(), "step-000000200");
  EXPECT_EQ(store.path_of(200).parent_path(), store.directory());
}

TEST_F(Store, IsEmptyWhereThereIsNoDirectoryYet) {
  EXPECT_THAT(store.steps(), IsEmpty());
  EXPECT_EQ(store.latest(), std::nullopt);
}

TEST_F(Store, HasACheckpointWhenItIsPublishedAndNotBefore) {
  const fs::path staging = store.stage(200, 100);
  EXPECT_EQ(staging, store.staging_of(200));
  EXPECT_TRUE(fs::is_empty(staging));
  write_checkpoint(staging, 200);
  EXPECT_THAT(store.steps(), IsEmpty());
  EXPECT_EQ(store.latest(), std::nullopt);
  EXPECT_THAT(store.publish(200), IsEmpty());
  EXPECT_THAT(store.steps(), ElementsAre(200));
  EXPECT_EQ(store.latest(), "step-000000200");
  EXPECT_EQ(open_manifest(store.path_of(200), Verify::kHashes).step, 200);
  EXPECT_THAT(names(), UnorderedElementsAre("step-000000200", "latest"));
}

TEST_F(Store, ListsTheNewestFirst) {
  save(5);
  save(1000);
  EXPECT_THAT(store.steps(), ElementsAre(1000, 5));
  EXPECT_EQ(store.latest(), "step-000001000");
}

TEST_F(Store, WhatIsDiscardedLeavesNothing) {
  write_checkpoint(store.stage(200, 100), 200);
  store.discard(200);
  store.discard(300); // never staged
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Store, CleansAtTheNextSaveWhatKilledJobsLeft) {
  save(100);
  for (const char* left : {".step-000000200.staging", ".step-000000050.removed"}) {
    write_checkpoint(store.directory() / left, 1);
  }
  std::ofstream(store.directory() / "latest.77-0.tmp") << "step";
  std::ofstream(store.directory() / "notes.txt") << "mine";
  fs::create_directories(store.directory() / ".hidden");
  const fs::path staging = store.stage(200, 100);
  EXPECT_TRUE(fs::is_empty(staging));
  EXPECT_THAT(names(),
              UnorderedElementsAre("step-000000100", "latest", "notes.txt", ".hidden", ".step-000000200.staging"));
}

TEST_F(Store, ReplacesACheckpointOfTheSameStep) {
  save(200, 7);
  save(200, 9);
  EXPECT_EQ(shard_of(200).back(), 9);
  EXPECT_THAT(names(), UnorderedElementsAre("step-000000200", "latest"));
}

TEST_F(Store, TakesNoSymbolicLinkForACheckpoint) {
  save(5);
  fs::create_directory_symlink("step-000000005", store.path_of(88));
  EXPECT_THAT(store.steps(), ElementsAre(5));
}

TEST_F(Store, SetsAsideTheCheckpointsOfALineThatARunHasLeft) {
  for (const int step : {100, 200, 300}) {
    save(step);
  }
  EXPECT_THAT(
      save(150),
      UnorderedElementsAre(store.directory() / "left-step-000000300", store.directory() / "left-step-000000200"));
  EXPECT_THAT(store.steps(), ElementsAre(150, 100));
  EXPECT_EQ(store.latest(), "step-000000150");
  EXPECT_EQ(find_checkpoint(store.directory(), Verify::kSizes).manifest.step, 150);
  EXPECT_EQ(open_manifest(store.directory() / "left-step-000000300", Verify::kHashes).step, 300);
  save(300);
  EXPECT_THAT(save(200), ElementsAre(store.directory() / "left-step-000000300-2"));
}

TEST_F(Store, PrunesAllButTheNewest) {
  for (const int step : {1, 2, 3, 4}) {
    save(step);
  }
  store.prune(2);
  EXPECT_THAT(store.steps(), ElementsAre(4, 3));
  EXPECT_THAT(names(), UnorderedElementsAre("step-000000003", "step-000000004", "latest"));
  store.prune(0);
  EXPECT_THAT(store.steps(), ElementsAre(4));
}

TEST_F(Store, NeverPrunesWhatLatestNames) {
  save(1);
  save(2);
  write_checkpoint(store.path_of(3), 3); // published, and the job killed before `latest` was replaced
  store.prune(1);
  EXPECT_THAT(store.steps(), ElementsAre(3, 2));
}

TEST_F(Store, PrunesWhereLatestIsGoneOrNamesNothing) {
  save(1);
  save(2);
  std::ofstream(store.directory() / "latest") << "../../elsewhere";
  EXPECT_EQ(store.latest(), std::nullopt);
  store.prune(1);
  EXPECT_THAT(store.steps(), ElementsAre(2));
}

TEST_F(Store, StagesNothingThatDoesNotFitOnTheDisk) {
  save(100);
  expect_refusal<PeerError>(Code::kDiskFull, {store.directory().string(), "9223372036854775807 free bytes"}, [&] {
    store.stage(200, INT64_MAX);
  });
  EXPECT_THAT(names(), UnorderedElementsAre("step-000000100", "latest"));
  EXPECT_EQ(open_manifest(store.path_of(100), Verify::kHashes).step, 100);
}

TEST_F(Store, WhereNothingCanBeMadeFailsWithTheKernelsReason) {
  const CheckpointStore nowhere("/proc/checkpoints");
  expect_refusal<PeerError>(Code::kIoFailed, {"/proc/checkpoints"}, [&] { nowhere.stage(1, 1); });
}

TEST(FreeSpace, IsAskedOfTheFileSystemThatADirectoryWillBeOn) {
  const TempDir temp;
  EXPECT_NO_THROW(require_free_space(temp / "not" / "there", 1));
  EXPECT_NO_THROW(require_free_space("relative-and-absent", 1));
  EXPECT_THROW(require_free_space(temp / "not" / "there", INT64_MAX), PeerError);
}

} // namespace
} // namespace tieshard
