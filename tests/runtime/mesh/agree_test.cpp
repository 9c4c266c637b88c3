#include "tieshard/runtime/mesh/agree.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

void fail(std::int64_t rank) {
  throw InputError({.code = Code::kDataTooShort,
                    .what = concat("rank ", rank, " has no data"),
                    .where = "a file",
                    .fix = "give it some"});
}

class Agree : public ::testing::TestWithParam<int> {};

TEST_P(Agree, ReturnsOnEveryRankWhenNoneFails) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    int calls = 0;
    EXPECT_NO_THROW(agree(mesh, "stage", [&] { ++calls; }));
    EXPECT_EQ(calls, 1);
  });
}

TEST_P(Agree, TheRankThatFailedThrowsItsOwnErrorAndTheOthersNameIt) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const std::int64_t bad = mesh.size() - 1;
    const auto stage = [&] {
      agree(mesh, "read the data", [&] {
        if (mesh.rank() == bad) {
          fail(bad);
        }
      });
    };
    if (mesh.rank() == bad) {
      expect_refusal(stage, Code::kDataTooShort, {concat("rank ", bad, " has no data")});
    } else {
      expect_refusal(stage,
                     Code::kPeerFailed,
                     {mesh.where(), "read the data", concat("rank ", bad, " says: rank ", bad, " has no data")});
    }
  });
}

TEST(AgreeOnThreeRanks, OfTwoThatFailEachThrowsItsOwnAndTheThirdNamesTheFirst) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    const auto stage = [&] {
      agree(mesh, "stage", [&] {
        if (mesh.rank() != 1) {
          fail(mesh.rank());
        }
      });
    };
    if (mesh.rank() == 1) {
      expect_refusal(stage, Code::kPeerFailed, {"rank 0 says", "rank 0 has no data"});
    } else {
      expect_refusal(stage, Code::kDataTooShort, {concat("rank ", mesh.rank(), " has no data")});
    }
  });
}

TEST_P(Agree, OfRanksThatSayTheSameOnlyTheFirstSaysIt) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto stage = [&] { agree(mesh, "stage", [] { fail(7); }); };
    if (mesh.rank() == 0) {
      expect_refusal(stage, Code::kDataTooShort, {"rank 7 has no data"});
    } else {
      expect_refusal(stage, Code::kPeerFailed, {"rank 0 says the same", "rank 7 has no data"});
    }
  });
}

TEST_P(Agree, AnErrorWithoutAMessageIsStillAnError) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto stage = [&] {
      agree(mesh, "stage", [&] {
        if (mesh.rank() == 0) {
          throw std::runtime_error("");
        }
      });
    };
    if (mesh.rank() == 0) {
      EXPECT_THROW(stage(), std::runtime_error);
    } else {
      expect_refusal(stage, Code::kPeerFailed, {"rank 0 says"});
    }
  });
}

TEST_P(Agree, TheMeshIsUsableAfterAFailure) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    EXPECT_THROW(agree(mesh, "first", [&] { fail(mesh.rank()); }), InputError);
    EXPECT_NO_THROW(agree(mesh, "second", [] {}));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Agree, ::testing::Values(1, 2, 4), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

} // namespace
} // namespace tieshard::testing
