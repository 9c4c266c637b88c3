#include "tieshard/core/io/local_shards.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tieshard/core/io/mapped_guard.h"

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/raised.h"

namespace tieshard::testing {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20;

/// A checkpoint, a plan for it as its tensors are stored, and what one rank reads.
struct Planned {
  Checkpoint checkpoint;
  ShardPlan plan;
};

Planned plan_for(const CheckpointFixture& fixture,
                 DType dtype,
                 ShardDimPolicy policy = ShardDimPolicy::kFirst,
                 std::int64_t ranks = 2) {
  Checkpoint checkpoint = fixture.open();
  ParameterTable table;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    table.push_back({.fqn = tensor.name, .shape = tensor.shape, .dtype = dtype, .identity = table.size() + 1});
  }
  ShardPlan plan = ShardPlan::build(table, TieRegistry(), ranks, {.policy = policy, .dims = {}, .units = {}});
  return {std::move(checkpoint), std::move(plan)};
}

LocalShards load(const Planned& planned, std::int64_t rank = 0, const LocalShardOptions& options = {}) {
  const ReadPlan reads = build_read_plan(planned.checkpoint, planned.plan, rank);
  return load_local_shards(planned.checkpoint, planned.plan, reads, rank, options);
}

float element(const LocalShard& shard, std::uint64_t index) {
  float value = 0;
  std::memcpy(&value, shard.data + index * sizeof(float), sizeof(float));
  return value;
}

std::string bytes_in(const LocalShard& shard) {
  return {reinterpret_cast<const char*>(shard.data), shard.bytes};
}

constexpr std::uint64_t kAnySize = 1;

// --- What is mapped, and what is copied.

TEST(LocalShards, MapsAContiguousSliceOfTheSameDtypeAndCopiesWhatIsConvertedOrStrided) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {64, 32})});
  struct Case {
    DType dtype;
    ShardDimPolicy policy;
    bool map;
    bool mapped;
  };
  for (const Case& one : {Case{DType::kF32, ShardDimPolicy::kFirst, true, true},
                          Case{DType::kF32, ShardDimPolicy::kFirst, false, false},
                          Case{DType::kF32, ShardDimPolicy::kLast, true, false},
                          Case{DType::kBF16, ShardDimPolicy::kFirst, true, false}}) {
    const Planned planned = plan_for(fixture, one.dtype, one.policy);
    const LocalShards loaded = load(planned, 1, {.map = one.map, .smallest_mapped = kAnySize});
    ASSERT_EQ(loaded.shards.size(), 1U);
    EXPECT_EQ(loaded.shards[0].mapped, one.mapped);
    EXPECT_EQ(loaded.ledger.entries[0].mapped, one.mapped);
    EXPECT_EQ(loaded.ledger.bytes_mapped, one.mapped ? 64U * 32 * 4 / 2 : 0U);
    EXPECT_EQ(loaded.ledger.bytes_read == 0, one.mapped);
    if (one.dtype == DType::kF32) {
      EXPECT_EQ(element(loaded.shards[0], 0), one.policy == ShardDimPolicy::kFirst ? 32.0F * 32 : 16.0F);
    }
  }
}

TEST(LocalShards, CopiesASliceThatIsNotAlignedToItsElements) {
  CheckpointFixture fixture;
  fixture.write({{"byte", DType::kU8, {1}, std::vector<std::byte>(1)}, counting("t", {64})});
  Checkpoint checkpoint = fixture.open();
  const ParameterTable table{{.fqn = "t", .shape = {64}, .dtype = DType::kF32, .identity = 1}};
  ShardPlan plan = ShardPlan::build(table, TieRegistry(), 1);
  const LocalShards loaded = load({std::move(checkpoint), std::move(plan)}, 0, {.smallest_mapped = kAnySize});
  EXPECT_FALSE(loaded.shards[0].mapped);
  EXPECT_EQ(element(loaded.shards[0], 63), 63.0F);
}

TEST(LocalShards, CopiesASmallSliceIntoMemoryThatItSharesWithOthers) {
  CheckpointFixture fixture;
  fixture.write({counting("a", {10}), counting("b", {10}, 100.0F)});
  const LocalShards loaded = load(plan_for(fixture, DType::kF32));
  EXPECT_FALSE(loaded.shards[0].mapped);
  EXPECT_LT(std::abs(loaded.shards[0].data - loaded.shards[1].data), 4096);
  EXPECT_EQ(element(loaded.shards[0], 4), 4.0F);
  EXPECT_EQ(element(loaded.shards[1], 4), 104.0F);
}

TEST(LocalShards, GivesTheSameBytesMappedCopiedWithOneThreadAndWithMany) {
  CheckpointFixture fixture;
  fixture.write(
      {counting("a", {1000, 700}), as_bf16(counting("b", {30, 8})), counting("c", {7}), counting("d", {3, 300'000})});
  for (const ShardDimPolicy policy : {ShardDimPolicy::kFirst, ShardDimPolicy::kLast}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Planned planned = plan_for(fixture, dtype, policy, 3);
      for (std::int64_t rank = 0; rank < 3; ++rank) {
        const LocalShards expected = load(planned, rank, {.map = false});
        for (const LocalShardOptions& options : {LocalShardOptions{.smallest_mapped = kAnySize},
                                                 LocalShardOptions{.threads = 3},
                                                 LocalShardOptions{.threads = 3, .read_buffer = 100'000}}) {
          const LocalShards loaded = load(planned, rank, options);
          ASSERT_EQ(loaded.shards.size(), expected.shards.size());
          for (std::size_t i = 0; i < loaded.shards.size(); ++i) {
            EXPECT_TRUE(bytes_in(loaded.shards[i]) == bytes_in(expected.shards[i])) << loaded.shards[i].fqn;
          }
        }
      }
    }
  }
}

TEST(LocalShards, AreWritableAndTheFileStaysAsItIs) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {64, 32})});
  const Planned planned = plan_for(fixture, DType::kF32);
  const LocalShards first = load(planned, 0, {.smallest_mapped = kAnySize});
  ASSERT_TRUE(first.shards[0].mapped);
  std::memset(first.shards[0].data, 0x11, first.shards[0].bytes);
  const LocalShards second = load(planned, 0, {.smallest_mapped = kAnySize});
  EXPECT_EQ(element(second.shards[0], 1), 1.0F);
}

TEST(LocalShards, OutliveTheCheckpointThatTheyWereLoadedFrom) {
  LocalShards loaded;
  {
    CheckpointFixture fixture;
    fixture.write({counting("t", {64, 32})});
    loaded = load(plan_for(fixture, DType::kF32), 1, {.smallest_mapped = kAnySize});
  }
  EXPECT_EQ(element(loaded.shards[0], 0), 32.0F * 32);
}

TEST(LocalShards, OfNothingHaveNoMemory) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {2, 4})});
  const LocalShards loaded = load(plan_for(fixture, DType::kF32, ShardDimPolicy::kFirst, 4), 3);
  EXPECT_EQ(loaded.shards[0].shape, (Shape{0, 4}));
  EXPECT_EQ(loaded.shards[0].data, nullptr);
  EXPECT_EQ(loaded.ledger.entries[0].materialized, 1);
  EXPECT_EQ(loaded.ledger.entries[0].padding, 4);
}

TEST(LocalShards, LeaveOutWhatIsSkippedButAccountForIt) {
  CheckpointFixture fixture;
  fixture.write({counting("a", {8}), counting("b", {8})});
  const std::set<std::string> skip{"a"};
  const LocalShards loaded = load(plan_for(fixture, DType::kF32), 0, {.skip = &skip});
  ASSERT_EQ(loaded.shards.size(), 1U);
  EXPECT_EQ(loaded.shards[0].fqn, "b");
  ASSERT_EQ(loaded.ledger.entries.size(), 2U);
  EXPECT_EQ(loaded.ledger.find("a")->materialized, 0);
  EXPECT_EQ(loaded.ledger.find("b")->materialized, 1);
}

TEST(LocalShards, FillWhatNoFileHoldsByItsRule) {
  CheckpointFixture fixture;
  fixture.write({counting("a", {8})});
  Checkpoint checkpoint = fixture.open();
  const ParameterTable table{{.fqn = "a", .shape = {8}, .dtype = DType::kF32, .identity = 1},
                             {.fqn = "new", .shape = {8}, .dtype = DType::kF32, .identity = 2}};
  const ShardPlan plan = ShardPlan::build(table, TieRegistry(), 2);
  const ReadPlan reads =
      build_read_plan(checkpoint, plan, 1, {.inits = {{.fqn = "new", .rule = InitRule::parse("constant(2.5)")}}});
  const LocalShards loaded = load_local_shards(checkpoint, plan, reads, 1);
  EXPECT_EQ(element(loaded.shards[0], 0), 4.0F);
  EXPECT_EQ(element(loaded.shards[1], 3), 2.5F);
  const LedgerEntry& entry = *loaded.ledger.find("new");
  EXPECT_EQ(entry.initialised, "constant(2.5)");
  EXPECT_EQ(entry.file, "");
  EXPECT_EQ(entry.materialized, 1);
  EXPECT_EQ(loaded.ledger.find("a")->initialised, "");
}

// --- Values.

TEST(LocalShards, WarnOnceOfAllParametersWithNaNOrInfinityMappedOrNot) {
  FixtureTensor bad = counting("bad", {8, 4});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bad.bytes.data() + 21 * sizeof(float), &nan, sizeof(float));
  FixtureTensor worse = counting("worse", {8});
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(worse.bytes.data() + 7 * sizeof(float), &infinity, sizeof(float));
  CheckpointFixture fixture;
  fixture.write({bad, counting("good", {8}), worse});
  const Planned planned = plan_for(fixture, DType::kF32);
  for (const bool map : {true, false}) {
    const LocalShards loaded = load(planned, 1, {.map = map, .smallest_mapped = kAnySize});
    ASSERT_EQ(loaded.ledger.findings.size(), 1U);
    EXPECT_EQ(loaded.ledger.findings[0].code, Code::kNotFinite);
    EXPECT_EQ(loaded.ledger.findings[0].level, Level::kWarning);
    EXPECT_THAT(loaded.ledger.findings[0].why, AllOf(HasSubstr("bad[5, 1] = NaN"), HasSubstr("worse[7] = infinity")));
    EXPECT_TRUE(load(planned, 0, {.map = map}).ledger.findings.empty()); // the other rank holds neither
    EXPECT_TRUE(load(planned, 1, {.map = map, .check_values = false}).ledger.findings.empty());
  }
}

// --- Memory.

TEST(LocalShards, AreRefusedBeforeAByteIsReadWhenTheyNeedMoreThanTheyMayTake) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {1024, 1024})});
  const Planned planned = plan_for(fixture, DType::kF32);
  const LocalShardOptions plain{};
  const std::uint64_t predicted = predicted_load_bytes(planned.plan, 0, plain);
  EXPECT_GE(predicted, 2 * kMiB + plain.read_buffer);
  LocalShardOptions options{.host_ram = predicted};
  EXPECT_EQ(load(planned, 0, options).ledger.predicted_bytes, predicted);
  options.host_ram = predicted - 1;
  fs::remove(fixture.path() / "model.safetensors"); // would be noticed as soon as anything is read
  const auto refused = raised<InputError>([&] { load(planned, 1, options); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kHostMemory);
  EXPECT_THAT(refused->where, HasSubstr("rank 1 of 2"));
  EXPECT_THAT(refused->why, AllOf(HasSubstr(concat(predicted - 1)), HasSubstr(concat(predicted))));
}

std::uint64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::stoull(line.substr(6)) * 1024;
    }
  }
  return 0;
}

/// Runs `body` in a process of its own, whose peak nothing else has raised; true when it returns true.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(LocalShards, TakeNoMoreMemoryThanPredictedAndLittleLess) {
  CheckpointFixture fixture;
  ASSERT_TRUE(in_child([&fixture] { // what writing takes must not count
    fixture.write({as_bf16(counting("a", {4096, 4096})), as_bf16(counting("b", {16384, 1024})), counting("c", {1000})});
    return true;
  }));
  for (const ShardDimPolicy policy : {ShardDimPolicy::kFirst, ShardDimPolicy::kLast}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const bool map : {true, false}) {
        EXPECT_TRUE(in_child([&] {
          const Planned planned = plan_for(fixture, dtype, policy);
          const std::uint64_t before = peak_bytes();
          const LocalShards loaded = load(planned, 0, {.threads = 2, .map = map});
          const std::uint64_t growth = peak_bytes() - before;
          const std::uint64_t predicted = loaded.ledger.predicted_bytes;
          if (growth > predicted || growth + 128 * kMiB < predicted || growth < loaded.ledger.shard_bytes * 9 / 10) {
            std::cerr << "grew by " << growth << ", predicted " << predicted << ", shards " << loaded.ledger.shard_bytes
                      << "\n";
            return false;
          }
          return true;
        })) << "dtype "
            << name(dtype) << " map " << map;
      }
    }
  }
}

TEST(LocalShards, TakeNoMoreMemoryThanPredictedForPiecesThatFillNoHugePages) {
  CheckpointFixture fixture;
  ASSERT_TRUE(in_child([&fixture] {
    std::vector<FixtureTensor> tensors;
    for (int i = 0; i < 48; ++i) {
      tensors.push_back(as_bf16(counting("w" + std::to_string(i), {900, 1000})));
    }
    fixture.write(tensors);
    return true;
  }));
  for (const std::uint64_t read_buffer : {std::uint64_t{1}, 16 * kMiB}) {
    for (const int threads : {1, 8}) {
      EXPECT_TRUE(in_child([&] {
        const Planned planned = plan_for(fixture, DType::kBF16, ShardDimPolicy::kLast, 1);
        const std::uint64_t before = peak_bytes();
        const LocalShards loaded = load(planned, 0, {.threads = threads, .read_buffer = read_buffer, .map = false});
        const std::uint64_t growth = peak_bytes() - before;
        if (growth > loaded.ledger.predicted_bytes) {
          std::cerr << "grew by " << growth << ", predicted " << loaded.ledger.predicted_bytes << "\n";
        }
        return growth <= loaded.ledger.predicted_bytes;
      })) << "buffer "
          << read_buffer << " threads " << threads;
    }
  }
}

// --- Files that change.

TEST(LocalShards, AreRefusedWhenAFileChangedSinceItWasOpened) {
  const std::function<void(const fs::path&)> changes[] = {
      [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 4); },
      [](const fs::path& file) { std::ofstream(file, std::ios::app) << "x"; },
      [](const fs::path& file) { fs::last_write_time(file, fs::last_write_time(file) + std::chrono::nanoseconds(1)); },
      [](const fs::path& file) { fs::remove(file); },
      [](const fs::path& file) { // the same bytes, another inode
        const auto time = fs::last_write_time(file);
        fs::copy_file(file, file.string() + ".new");
        fs::last_write_time(file.string() + ".new", time);
        fs::rename(file.string() + ".new", file);
      },
  };
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    for (const bool during : {false, true}) {
      CheckpointFixture fixture;
      fixture.write({counting("t", {64, 32}), counting("u", {64, 32})});
      const Planned planned = plan_for(fixture, DType::kF32);
      bool changed = false;
      const auto change = [&] {
        if (!std::exchange(changed, true)) {
          changes[i](fixture.path() / "model.safetensors");
        }
      };
      if (!during) {
        change();
      }
      const auto refused = raised<PeerError>(
          [&] { load(planned, 0, {.on_progress = [&change](std::uint64_t, std::uint64_t) { change(); }}); });
      ASSERT_TRUE(refused.has_value()) << i << during;
      EXPECT_EQ(refused->code, Code::kFileChanged) << i << during;
      EXPECT_THAT(refused->where, HasSubstr("model.safetensors"));
      EXPECT_THAT(refused->why, AllOf(HasSubstr("expected"), HasSubstr("got")));
    }
  }
}

TEST(LocalShards, AreRefusedWithoutASignalWhenAFileIsCutUnderTheLoad) {
  for (const ShardDimPolicy policy : {ShardDimPolicy::kFirst, ShardDimPolicy::kLast}) {
    for (const bool map : {true, false}) {
      CheckpointFixture fixture;
      fixture.write({counting("a", {1024, 4096}), counting("b", {1024, 4096})});
      const Planned planned = plan_for(fixture, DType::kF32, policy);
      const auto refused = raised<PeerError>([&] {
        load(planned, 1, {.threads = 2, .map = map, .on_progress = [&fixture](std::uint64_t, std::uint64_t) {
                            fs::resize_file(fixture.path() / "model.safetensors", 4096);
                          }});
      });
      ASSERT_TRUE(refused.has_value());
      EXPECT_EQ(refused->code, Code::kFileChanged);
    }
  }
  EXPECT_NO_THROW(require_mappings_intact()); // nothing of a failed load is left
}

TEST(LocalShards, ThatAreMappedSayWhenTheirFileIsCutLater) {
  CheckpointFixture fixture;
  fixture.write({counting("t", {1024, 256})});
  const LocalShards loaded = load(plan_for(fixture, DType::kF32));
  ASSERT_TRUE(loaded.shards[0].mapped);
  fs::resize_file(fixture.path() / "model.safetensors", 4096);
  EXPECT_EQ(element(loaded.shards[0], 100'000), 0.0F);
  const auto failed = raised<PeerError>([] { require_mappings_intact(); });
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->code, Code::kFileChanged);
  EXPECT_THAT(failed->where, HasSubstr("model.safetensors, byte "));
}

TEST(LocalShards, CountABufferOfAMebibyteHoweverSmallItIsAskedFor) {
  CheckpointFixture fixture;
  fixture.write({counting("a", {16, 4})});
  const Planned planned = plan_for(fixture, DType::kF32, ShardDimPolicy::kLast);
  EXPECT_EQ(predicted_load_bytes(planned.plan, 0, {.read_buffer = 1}),
            predicted_load_bytes(planned.plan, 0, {.read_buffer = kMiB}));
  EXPECT_LT(predicted_load_bytes(planned.plan, 0, {.read_buffer = kMiB}),
            predicted_load_bytes(planned.plan, 0, {.read_buffer = kMiB + 1}));
}

} // namespace
} // namespace tieshard::testing
