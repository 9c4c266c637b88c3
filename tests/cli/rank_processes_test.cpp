#include "tieshard/cli/rank_processes.h"

#include <csignal>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tieshard/cli/report.h"

namespace tieshard::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::int64_t> kFour = {0, 1, 2, 3};

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw InputError({.code = Code::kHostMemory, .what = "w", .where = where, .why = why, .fix = "f"});
}

TEST(RankProcesses, GivesTheAnswersInTheOrderAskedFor) {
  const RankAnswers result = run_rank_processes({3, 0, 2}, [](std::int64_t rank) {
    ::usleep(static_cast<useconds_t>(rank) * 1000);
    return OrderedJson{{"rank", rank}, {"process", ::getpid()}};
  });
  ASSERT_EQ(result.answers.size(), 3U);
  EXPECT_EQ(result.answers[0]["rank"], 3);
  EXPECT_EQ(result.answers[1]["rank"], 0);
  EXPECT_EQ(result.answers[2]["rank"], 2);
  EXPECT_NE(result.answers[0]["process"], result.answers[1]["process"]);
  EXPECT_THAT(result.failures, ::testing::IsEmpty());
}

TEST(RankProcesses, TakesAnAnswerThatFillsThePipeManyTimes) {
  const std::string text(5'000'000, 'x');
  const RankAnswers result = run_rank_processes({0, 1}, [&](std::int64_t) { return OrderedJson(text); });
  ASSERT_EQ(result.answers.size(), 2U);
  EXPECT_EQ(result.answers[1].get<std::string>().size(), text.size());
}

TEST(RankProcesses, SaysEachKindOfFailureOnceWithItsRanks) {
  const RankAnswers result = run_rank_processes(kFour, [](std::int64_t rank) -> OrderedJson {
    if (rank == 2) {
      return 1;
    }
    refuse(concat("rank ", rank, " of 4", rank == 1 ? ", there" : ""), concat("figures of ", rank));
  });
  EXPECT_EQ(result.answers.size(), 1U);
  ASSERT_EQ(result.failures.size(), 2U);
  EXPECT_THAT(result.failures[0].ranks, ElementsAre(0, 3));
  EXPECT_EQ(result.failures[0].diagnostic.code, Code::kHostMemory);
  EXPECT_EQ(result.failures[0].diagnostic.where, "");
  EXPECT_EQ(result.failures[0].diagnostic.why, "figures of 0");
  EXPECT_EQ(result.failures[0].status, kExitInput);
  EXPECT_THAT(result.failures[1].ranks, ElementsAre(1));
  EXPECT_EQ(result.failures[1].diagnostic.where, "there");
}

TEST(RankProcesses, NamesTheSignalThatEndedARank) {
  const RankAnswers result = run_rank_processes(kFour, [](std::int64_t rank) -> OrderedJson {
    if (rank == 1) {
      ::kill(::getpid(), SIGKILL);
    }
    if (rank == 2) {
      ::_exit(7);
    }
    return rank;
  });
  EXPECT_EQ(result.answers.size(), 2U);
  ASSERT_EQ(result.failures.size(), 2U);
  EXPECT_EQ(result.failures[0].diagnostic.code, Code::kRankDied);
  EXPECT_THAT(result.failures[0].diagnostic.why, HasSubstr("signal 9"));
  EXPECT_THAT(result.failures[1].diagnostic.why, HasSubstr("status 7"));
  EXPECT_EQ(result.failures[0].status, kExitPeer);
}

TEST(RankProcesses, TellsWhoCanActOfEveryException) {
  const RankAnswers result = run_rank_processes(kFour, [](std::int64_t rank) -> OrderedJson {
    const Diagnostic diagnostic{.code = Code::kIoFailed, .what = "w", .where = concat("file ", rank)};
    if (rank == 0) {
      throw PeerError(diagnostic);
    }
    if (rank == 1) {
      throw std::bad_alloc();
    }
    if (rank == 2) {
      throw std::runtime_error("unheard of");
    }
    throw UsageError(diagnostic);
  });
  std::vector<int> statuses;
  for (const RankFailure& failure : result.failures) {
    statuses.push_back(failure.status);
  }
  EXPECT_THAT(statuses, ElementsAre(kExitPeer, kExitPeer, kExitBug, kExitUsage));
  EXPECT_EQ(result.failures[1].diagnostic.code, Code::kOutOfMemory);
  EXPECT_EQ(result.failures[2].diagnostic.why, "unheard of");
}

} // namespace
} // namespace tieshard::cli
