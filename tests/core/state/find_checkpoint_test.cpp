#include "tieshard/core/state/find_checkpoint.h"

#include <atomic>
#include <thread>

#include "tieshard/core/state/checkpoint_store.h"

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/state/written_checkpoint.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

const std::string kShard = "shard-00001-model-00001-of-00001.safetensors";

/// Other bytes of the same size, from the end on: of tensors, so that the file still opens.
void change_last(const fs::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('!');
}

void overwrite(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// A run with checkpoints of steps 100, 200 and 1000.
class Run : public testing::Test {
 protected:
  Run() {
    for (const int step : {100, 200, 1000}) {
      write_checkpoint(at(step), step);
    }
  }

  fs::path at(int step) const {
    const std::string digits = std::to_string(step);
    return temp.path() / "checkpoints" / ("step-" + std::string(9 - digits.size(), '0') + digits);
  }

  const TempDir temp;
};

TEST(OpenManifest, GivesTheManifestOfWhatIsComplete) {
  const TempDir temp;
  const Manifest manifest = write_checkpoint(temp.path(), 3);
  EXPECT_EQ(open_manifest(temp.path(), Verify::kSizes), manifest);
  EXPECT_EQ(open_manifest(temp.path(), Verify::kHashes), manifest);
}

TEST(OpenManifest, RefusesADirectoryWithoutOneAndNoDirectory) {
  const TempDir temp;
  expect_refusal<InputError>(
      Code::kNoCheckpoint, {temp.path().string(), "without it"}, [&] { open_manifest(temp.path(), Verify::kSizes); });
  expect_refusal<InputError>(
      Code::kNoCheckpoint, {"no such directory"}, [&] { open_manifest(temp / "absent", Verify::kSizes); });
}

TEST(OpenManifest, NamesEachFileThatIsMissingOrOfAnotherSize) {
  const TempDir temp;
  write_checkpoint(temp.path(), 3);
  fs::remove(temp / "trainer.json");
  overwrite(temp / kShard, "tensors");
  expect_refusal<InputError>(Code::kCheckpointIncomplete,
                             {"trainer.json is missing", kShard + " has 7 bytes and not "},
                             [&] { open_manifest(temp.path(), Verify::kSizes); });
}

TEST(OpenManifest, FindsAChangedBitWhereHashesAreAskedFor) {
  const TempDir temp;
  write_checkpoint(temp.path(), 3);
  change_last(temp / kShard);
  EXPECT_NO_THROW(open_manifest(temp.path(), Verify::kSizes));
  expect_refusal<InputError>(
      Code::kCheckpointIncomplete, {kShard + " has other bytes"}, [&] { open_manifest(temp.path(), Verify::kHashes); });
}

TEST(OpenManifest, TakesNoFileOfTensorsThatTheManifestDoesNotName) {
  const TempDir temp;
  write_checkpoint(temp.path(), 3);
  overwrite(temp / "notes.txt", "anything");
  EXPECT_NO_THROW(open_manifest(temp.path(), Verify::kSizes));
  overwrite(temp / "shard-00002-model-00001-of-00001.safetensors", "stale");
  expect_refusal<InputError>(Code::kCheckpointIncomplete,
                             {"shard-00002-model-00001-of-00001.safetensors is not in the manifest"},
                             [&] { open_manifest(temp.path(), Verify::kSizes); });
}

TEST_F(Run, IsGoneOnWithFromItsNewestCheckpointHoweverItIsNamed) {
  for (const fs::path& given : {temp.path(), temp.path() / "checkpoints", at(1000), temp.path() / ""}) {
    const FoundCheckpoint found = find_checkpoint(given, Verify::kHashes);
    EXPECT_EQ(found.manifest.step, 1000) << given;
    EXPECT_TRUE(fs::equivalent(found.directory, at(1000)));
    EXPECT_TRUE(found.findings.empty());
  }
}

TEST_F(Run, IsGoneOnWithFromTheCheckpointThatIsNamed) {
  EXPECT_EQ(find_checkpoint(at(100), Verify::kSizes).manifest.step, 100);
}

TEST_F(Run, PassesOverDamagedCheckpointsAndSaysSo) {
  fs::remove(at(1000) / kShard);
  overwrite(at(200) / Manifest::kFileName, "{");
  const FoundCheckpoint found = find_checkpoint(temp.path(), Verify::kSizes);
  EXPECT_EQ(found.manifest.step, 100);
  ASSERT_EQ(found.findings.size(), 2U);
  expect_names(found.findings[0], Code::kCheckpointIncomplete, {at(1000).string(), kShard + " is missing"});
  expect_names(found.findings[1], Code::kJsonMalformed, {at(200).string()});
  EXPECT_EQ(found.findings[0].level, Level::kWarning);
  EXPECT_EQ(found.findings[1].level, Level::kWarning);
}

TEST_F(Run, LooksAtBytesOfOlderOnesToo) {
  change_last(at(1000) / kShard);
  change_last(at(200) / kShard);
  EXPECT_EQ(find_checkpoint(temp.path(), Verify::kSizes).manifest.step, 1000);
  EXPECT_EQ(find_checkpoint(temp.path(), Verify::kHashes).manifest.step, 100);
}

TEST_F(Run, PassesOverDamageThatKeepsTheSize) {
  const auto zeros = [](const fs::path& path) { overwrite(path, std::string(fs::file_size(path), '\0')); };
  zeros(at(1000) / kShard);
  zeros(at(200) / "trainer.json");
  const FoundCheckpoint found = find_checkpoint(temp.path(), Verify::kSizes);
  EXPECT_EQ(found.manifest.step, 100);
  ASSERT_EQ(found.findings.size(), 2U);
  expect_names(found.findings[0], Code::kHeaderNotJson, {at(1000).string(), kShard});
  expect_names(found.findings[1], Code::kJsonMalformed, {at(200).string(), "trainer.json"});
  expect_refusal<InputError>(
      Code::kHeaderNotJson, {at(1000).string()}, [&] { find_checkpoint(at(1000), Verify::kSizes); });
}

TEST_F(Run, PassesOverFilesOfAnotherSave) {
  Manifest manifest = write_checkpoint(at(1000), 1000);
  manifest.id = std::string(32, '5');
  rewrite_manifest(at(1000), manifest);
  const FoundCheckpoint found = find_checkpoint(temp.path(), Verify::kHashes);
  EXPECT_EQ(found.manifest.step, 200);
  ASSERT_EQ(found.findings.size(), 1U);
  expect_names(found.findings[0], Code::kSavesMixed, {at(1000).string()});
}

TEST_F(Run, PassesOverACheckpointUnderTheNameOfAnotherStep) {
  fs::rename(at(1000), temp / "kept");
  fs::rename(at(200), at(1000));
  const FoundCheckpoint found = find_checkpoint(temp.path(), Verify::kSizes);
  EXPECT_EQ(found.manifest.step, 100);
  ASSERT_EQ(found.findings.size(), 1U);
  expect_names(found.findings[0], Code::kCheckpointIncomplete, {at(1000).string(), "expected step 1000", "got 200"});
  EXPECT_EQ(find_checkpoint(temp / "kept", Verify::kSizes).manifest.step, 1000);
}

TEST_F(Run, WithADamagedCheckpointThatIsNamedIsRefusedAndNoOtherTaken) {
  fs::remove(at(1000) / kShard);
  EXPECT_THROW(find_checkpoint(at(1000), Verify::kSizes), InputError);
}

TEST_F(Run, WithNothingCompleteIsRefusedWithEachReason) {
  for (const int step : {100, 200, 1000}) {
    fs::remove(at(step) / Manifest::kFileName);
  }
  expect_refusal<InputError>(Code::kNoCheckpoint, {at(100).string(), at(200).string(), at(1000).string()}, [&] {
    find_checkpoint(temp.path(), Verify::kSizes);
  });
}

TEST_F(Run, KnowsItsCheckpointsByTheirNames) {
  for (const char* name : {"step-5000", "step-0000002000", ".step-000002000.staging", "step-000002000.old", "step-x"}) {
    write_checkpoint(temp.path() / "checkpoints" / name, 2000);
  }
  EXPECT_EQ(find_checkpoint(temp.path(), Verify::kSizes).manifest.step, 1000);
}

TEST(FindCheckpoint, FindsOneOfARunThatRemovesTheOlderOnesMeanwhile) {
  const TempDir temp;
  const CheckpointStore store(temp / "checkpoints");
  const auto save = [&](int step) {
    write_checkpoint(store.stage(step, 1), step);
    store.publish(step);
    store.prune(1);
  };
  save(1);
  std::atomic<bool> ended = false;
  std::thread run([&] {
    for (int step = 2; step < 40; ++step) {
      save(step);
    }
    ended = true;
  });
  while (!ended) {
    EXPECT_NO_THROW(find_checkpoint(temp.path(), Verify::kSizes));
  }
  run.join();
}

TEST(FindCheckpoint, OfADirectoryWithoutAnyIsRefused) {
  const TempDir temp;
  expect_refusal<InputError>(
      Code::kNoCheckpoint, {temp.path().string()}, [&] { find_checkpoint(temp.path(), Verify::kSizes); });
  expect_refusal<InputError>(
      Code::kNoCheckpoint, {"absent"}, [&] { find_checkpoint(temp / "absent", Verify::kSizes); });
}

} // namespace
} // namespace tieshard
