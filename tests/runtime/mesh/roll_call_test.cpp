// What the ranks that connect hear of the ones that do not come.

#include "tieshard/runtime/mesh/roll_call.h"

#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Runs `body` for each place of a group of `ranks`, in a thread of its own; places in `absent` do not come.
void call(const std::vector<std::int64_t>& ranks,
          milliseconds timeout,
          const std::vector<std::size_t>& absent,
          const std::function<void(RollCall&)>& body) {
  c10d::HashStore store;
  std::vector<std::jthread> threads;
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    if (std::ranges::find(absent, place) == absent.end()) {
      threads.emplace_back([&, place] {
        RollCall calls(store, place, ranks, timeout);
        body(calls);
      });
    }
  }
}

TEST(RollCall, GivesEachRankWhatAllHaveSaid) {
  call({0, 1, 2}, seconds(20), {}, [](RollCall& calls) {
    const std::vector<std::string> expected{"of 0", "of 1", "of 2"};
    EXPECT_EQ(calls.all("first", concat("of ", calls.place())), expected);
    EXPECT_EQ(calls.all("second"), std::vector<std::string>(3));
    EXPECT_EQ(calls.all("bytes", "\xff").front().empty(), false); // an error text in whatever encoding
  });
}

TEST(RollCall, NamesARankThatNeverCame) {
  for (const std::size_t absent : {0, 1, 2}) {
    call({0, 1, 2}, milliseconds(300), {absent}, [&](RollCall& calls) {
      expect_refusal([&] { calls.all("first"); },
                     Code::kRendezvousFailed,
                     {concat("waited up to 0.3 s for rank ", absent, ", which did not come")});
    });
  }
}

TEST(RollCall, NamesRanksByTheirNumberAmongAll) {
  call({2, 6, 10, 14}, milliseconds(300), {1, 3}, [](RollCall& calls) {
    expect_refusal([&] { calls.all("first"); }, Code::kRendezvousFailed, {"for ranks 6 and 14, which did not come"});
  });
}

TEST(RollCall, NamesARankThatWentAwayAfterAStage) {
  for (const std::size_t gone : {0, 2}) {
    call({0, 1, 2}, milliseconds(500), {}, [&](RollCall& calls) {
      calls.all("first");
      if (calls.place() == gone) {
        return;
      }
      expect_refusal([&] { calls.all("second"); },
                     Code::kRendezvousFailed,
                     {concat("for rank ", gone, ", which came and was then not heard of")});
    });
  }
}

TEST(RollCall, EndsForAllRanksWhereOneGivesUp) {
  const auto start = std::chrono::steady_clock::now();
  call({0, 1, 2}, seconds(60), {}, [](RollCall& calls) {
    calls.all("first");
    if (calls.place() == 1) {
      calls.abandon("rank 1 has another opinion");
      return;
    }
    expect_refusal([&] { calls.all("second"); }, Code::kRendezvousFailed, {"rank 1 has another opinion"});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(20)); // far below the timeout
}

TEST(RollCall, NamesWhoIsNotThroughWithWorkThatFailed) {
  call({0, 1, 2}, seconds(60), {}, [](RollCall& calls) {
    if (calls.place() == 2) {
      return; // it was killed in the middle of the work
    }
    expect_refusal([&] { calls.together("connected", [] { throw std::runtime_error("Connection reset\nframe"); }); },
                   Code::kRendezvousFailed,
                   {"rank 2 came, and is not through: Connection reset"});
  });
}

TEST(RollCall, PassesWorkThatFailedOnOneRankToAll) {
  call({0, 1, 2}, seconds(60), {}, [](RollCall& calls) {
    const auto work = [&] {
      if (calls.place() == 1) {
        throw std::runtime_error("no such interface");
      }
    };
    expect_refusal([&] { calls.together("connected", work); }, Code::kRendezvousFailed, {"rank 1: no such interface"});
  });
}

TEST(RanksText, NamesTheFirstOfMany) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({3, 5}), "ranks 3 and 5");
  EXPECT_EQ(ranks_text({1, 3, 5}), "ranks 1, 3 and 5");
  EXPECT_EQ(ranks_text({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

} // namespace
} // namespace tieshard::testing
