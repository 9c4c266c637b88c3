#include "tieshard/core/state/recorded_state.h"

#include <gtest/gtest.h>

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/state/written_checkpoint.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

/// A complete checkpoint of step 200, of which one record after another is made untrue.
class RecordedState : public testing::Test {
 protected:
  void expect_refused(const Manifest& changed, const std::vector<std::string>& named) const {
    expect_refusal<InputError>(
        Code::kCheckpointIncomplete, named, [&] { require_recorded_state(temp.path(), changed); });
  }

  void expect_trainer_refused(const TrainerState& trainer, const std::vector<std::string>& named) {
    write_text_file(temp / "trainer.json", to_json(trainer));
    expect_refused(manifest, named);
  }

  const TempDir temp;
  Manifest manifest = write_checkpoint(temp.path(), 200);
  ParameterRecord& embed = manifest.parameters[0];
};

TEST_F(RecordedState, IsTakenWhereAllOfItAgrees) {
  EXPECT_NO_THROW(require_recorded_state(temp.path(), manifest));
}

TEST_F(RecordedState, HasEachParameterWithItsDtypeAndShape) {
  embed.dtype = DType::kBF16;
  expect_refused(manifest, {"embed.weight", "expected embed.weight BF16 [6, 4], got F32 [6, 4]"});
  embed.dtype = DType::kF32;
  embed.shape = {4, 6};
  expect_refused(manifest, {"embed.weight.exp_avg_sq", "expected embed.weight F32 [4, 6], got F32 [6, 4]"});
  embed.shape = {6, 4};
  embed.fqn = "other.weight";
  expect_refused(manifest, {"other.weight", "no such tensor"});
}

TEST_F(RecordedState, HasNoTensorThatIsNotRecorded) {
  Manifest changed = manifest;
  changed.parameters[0].optimizer.reset();
  expect_refused(changed, {"embed.weight.exp_avg", "not"});
  changed = manifest;
  changed.parameters[0].optimizer->moments = {"exp_avg"};
  expect_refused(changed, {"embed.weight.exp_avg_sq", "not"});
  changed = manifest;
  changed.parameters.erase(changed.parameters.begin() + 1);
  expect_refused(changed, {"norm.weight", "not"});
  changed = manifest;
  changed.parameters[1].stored = false;
  expect_refused(changed, {"norm.weight", "not"});
}

TEST_F(RecordedState, HasEachMomentThatIsRecorded) {
  embed.optimizer->moments.emplace_back("master_weight");
  expect_refused(manifest, {"embed.weight.master_weight", "no such tensor"});
}

TEST_F(RecordedState, CountsStepsBesideTheMomentsThatNeedThem) {
  embed.optimizer->counters = {{"rounded_steps", 0}};
  expect_refused(manifest, {"manifest.json, embed.weight", "\"step\""});
  embed.optimizer->counters["step"] = 201;
  expect_refused(manifest, {"manifest.json, embed.weight", "from 0 to step 200, got 201"});
  embed.optimizer->counters["step"] = 3; // it had no gradient before
  EXPECT_NO_THROW(require_recorded_state(temp.path(), manifest));
  embed.optimizer->moments = {"exp_avg_sq"};
  expect_refused(manifest, {"manifest.json, embed.weight", "exp_avg beside exp_avg_sq"});
}

TEST_F(RecordedState, IsOfTheStepThatTheTrainerIsAt) {
  expect_trainer_refused({.step = 199, .generators = {"00", "01"}}, {"trainer.json", "step 200", "got 199"});
}

TEST_F(RecordedState, HasAGeneratorOfEachRank) {
  expect_trainer_refused({.step = 200}, {"trainer.json", "2 ranks", "got 0"});
  expect_trainer_refused({.step = 200, .generators = {"00"}}, {"trainer.json", "2 ranks", "got 1"});
  expect_trainer_refused({.step = 200, .generators = {"00", ""}}, {"trainer.json", "an empty one"});
  manifest.mesh.clear();
  expect_trainer_refused({.step = 200, .generators = {"00"}}, {"manifest.json", "axes of a mesh"});
}

TEST_F(RecordedState, KeepsTheGeneratorsOfTheSaveWhenItIsResharded) {
  manifest.mesh = {{"dp_shard", 3}};
  EXPECT_NO_THROW(require_recorded_state(temp.path(), manifest));
}

TEST_F(RecordedState, IsOfTheStepThatItsNameSays) {
  const fs::path moved = temp / "step-000000300";
  write_checkpoint(moved, 200);
  expect_refusal<InputError>(Code::kCheckpointIncomplete, {"step-000000300", "expected step 300", "got 200"}, [&] {
    require_recorded_state(moved, manifest);
  });
}

TEST_F(RecordedState, IsCutOnTheDimensionThatIsRecorded) {
  const std::string data(64, 1);
  const auto part = [&](std::int64_t rank) {
    const BlockInMemory block{.block = block_of("w", DType::kF32, {4, 4}, 0, {.offset = 2 * rank, .size = 2}),
                              .data = std::as_bytes(std::span(data)).data()};
    write_shard_file(temp / "cut", shard_file_name(rank, 0, 1), {block}, manifest.id);
  };
  fs::create_directories(temp / "cut");
  part(0);
  part(1);
  const ShardedFiles files = ShardedFiles::open(temp / "cut");
  manifest.parameters = {{.fqn = "w", .dtype = DType::kF32, .shape = {4, 4}, .dim = 0}};
  EXPECT_NO_THROW(require_as_recorded(files, manifest));
  manifest.parameters[0].dim = 1;
  expect_refusal<InputError>(
      Code::kCheckpointIncomplete, {"dimension 1", "cut on 0"}, [&] { require_as_recorded(files, manifest); });
}

} // namespace
} // namespace tieshard
