// What a rank sees when another one that shares memory with it ends, leaves, stops or never comes.

#include <random>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/shm/shm_collectives.h"

#include "tests/support/diagnostics.h"
#include "tests/support/raised.h"
#include "tests/support/shm_ranks.h"

namespace tieshard::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Collectives without end.
void work_on(ShmGroup& group) {
  std::vector<float> values(2000 * group.size(), 1.0F);
  std::vector<float> part(2000);
  auto* whole = reinterpret_cast<std::byte*>(values.data());
  auto* own = reinterpret_cast<std::byte*>(part.data());
  while (true) {
    reduce_scatter(group, own, whole, part.size(), DType::kF32, Reduction::kMin);
    all_gather(group, whole, own, part.size() * sizeof(float));
    all_reduce(group, own, part.size(), DType::kF32, Reduction::kMax);
  }
}

/// Ends all ranks, so that no failing test leaves one behind.
void end(const std::vector<pid_t>& children) {
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

TEST(LostPeer, OneThatIsKilledAtAnyMomentEndsTheOthersAndIsNamed) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 12; ++turn) {
    constexpr std::uint32_t kRanks = 3;
    const std::uint32_t victim = static_cast<std::uint32_t>(turn) % kRanks;
    const auto body = [&](ShmGroup& group) {
      const auto failure = raised<PeerError>([&] { work_on(group); });
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->code, Code::kCollectiveFailed);
      EXPECT_THAT(failure->where, ::testing::StartsWith(concat("rank ", group.rank(), "/3, ")));
      EXPECT_THAT(failure->why, ::testing::HasSubstr(concat("rank ", victim, " (process ")));
      EXPECT_THAT(failure->why, ::testing::HasSubstr("has ended"));
    };
    const std::vector<pid_t> children =
        start_shm_processes(make_shm({.ranks = kRanks, .piece_bytes = 512}), kRanks, body);
    std::this_thread::sleep_for(std::chrono::microseconds(20'000 + random() % 30'000));
    ::kill(children[victim], SIGKILL);
    const auto start = Clock::now();
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(status_of(children[rank]), rank == victim ? SIGKILL : 0) << "rank " << rank << " of turn " << turn;
    }
    EXPECT_LT(Clock::now() - start, kShmTimeout / 4); // by the end of the process, not by the timeout
  }
}

TEST(LostPeer, OneThatIsStoppedEndsTheOthersAfterTheTimeoutAndIsNamed) {
  const auto body = [&](ShmGroup& group) {
    const auto failure = raised<PeerError>([&] { work_on(group); });
    ASSERT_TRUE(failure);
    EXPECT_THAT(failure->why, ::testing::HasSubstr("rank 1 (process "));
    EXPECT_THAT(failure->why, ::testing::HasSubstr("did not come within 700 ms"));
  };
  const std::vector<pid_t> children =
      start_shm_processes(make_shm({.ranks = 3, .piece_bytes = 512}), 3, body, milliseconds(700));
  std::this_thread::sleep_for(milliseconds(50));
  ::kill(children[1], SIGSTOP);
  EXPECT_EQ(status_of(children[0]), 0);
  EXPECT_EQ(status_of(children[2]), 0);
  end({children[1]});
}

TEST(LostPeer, OneThatLeavesEndsALaterCollectiveButNoneThatItTookPartIn) {
  on_shm_threads({.ranks = 2, .piece_bytes = 512}, [](ShmGroup& group) {
    std::vector<std::byte> data(50'000);
    std::this_thread::sleep_for(milliseconds(group.rank() * 60)); // the first is gone when the other begins
    broadcast(group, data.data(), 1000, 0);
    if (group.rank() == 0) {
      return;
    }
    const auto failure = raised<PeerError>([&] { barrier(group); });
    ASSERT_TRUE(failure);
    EXPECT_THAT(failure->why, ::testing::HasSubstr("rank 0 (process "));
    EXPECT_THAT(failure->why, ::testing::HasSubstr("has left the group"));
  });
}

TEST(LostPeer, OneThatExitsWithoutAWordIsNoticed) {
  const auto children = start_shm_processes(make_shm({.ranks = 2}), 2, [](ShmGroup& group) {
    barrier(group);
    if (group.rank() == 1) {
      ::_exit(0); // no destructor runs
    }
    expect_refusal([&] { barrier(group); }, Code::kCollectiveFailed, {"rank 0/2, barrier", "rank 1", "has ended"});
  });
  EXPECT_EQ(status_of(children[0]), 0);
  EXPECT_EQ(status_of(children[1]), 0);
}

TEST(LostPeer, OneThatNeverComesIsNamedAfterTheTimeout) {
  ShmGroup group(make_shm({.ranks = 2}), 0, milliseconds(100));
  expect_refusal([&] { group.meet(); }, Code::kCollectiveFailed, {"rank 0/2", "rank 1", "did not come within 100 ms"});
}

TEST(LostPeer, OneThatIsLateWithinTheTimeoutIsWaitedFor) {
  on_shm_threads({.ranks = 4, .piece_bytes = 512}, [](ShmGroup& group) {
    std::vector<float> values(3000, 1.0F);
    for (int turn = 0; turn < 3; ++turn) {
      std::this_thread::sleep_for(milliseconds(group.rank() == 2 ? 150 : 0)); // longer than others sleep at a time
      all_reduce(group, reinterpret_cast<std::byte*>(values.data()), values.size(), DType::kF32, Reduction::kSum);
    }
    EXPECT_EQ(values, std::vector<float>(3000, 64.0F));
  });
}

TEST(LostPeer, AForkedChildThatEndsIsNotTheRank) {
  on_shm_processes({.ranks = 2}, [](ShmGroup& group) {
    barrier(group);
    if (group.rank() == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        group.~ShmGroup();
        ::_exit(0);
      }
      ::waitpid(child, nullptr, 0);
    }
    barrier(group);
  });
}

} // namespace
} // namespace tieshard::testing
