// Ranks that are at different places of a run: other units, other stages, other grids. What they exchange has as many
// bytes; both are told where either is.

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

/// What each rank does, and how a message calls it.
struct Place {
  std::string name;
  std::function<void(const DeviceMesh&)> act;
};

void expect_both_named(const std::vector<Place>& places, BackendChoice backend) {
  on_ranks(
      2,
      [&](const DeviceMesh& mesh) {
        const auto start = Clock::now();
        expect_refusal([&] { places[static_cast<std::size_t>(mesh.rank())].act(mesh); },
                       Code::kCollectiveFailed,
                       {mesh.where(), places[0].name, places[1].name, "rank 0", "rank 1"});
        EXPECT_LT(Clock::now() - start, seconds(20)); // the timeout is a minute
      },
      backend);
}

Place unit_of_one_size(const std::string& unit, const std::string& shown) {
  return {shown, [unit](const DeviceMesh& mesh) { all_gather_into_tensor(mesh, at::empty({4}), at::ones({2}), unit); }};
}

Place stage(const std::string& name) {
  return {"agree \"" + name + "\"", [name](const DeviceMesh& mesh) { agree(mesh, name, [] {}); }};
}

Place texts(const std::string& name) {
  return {name, [name](const DeviceMesh& mesh) { all_gather_text(mesh, "12", CollectivePurpose::named(name)); }};
}

TEST(OtherPlaces, UnitsOfEqualSizeAreNotPaired) {
  expect_both_named({unit_of_one_size("block.0", "unit block.0"), unit_of_one_size("block.1", "unit block.1")},
                    BackendChoice::kShm);
}

TEST(OtherPlaces, TheRootIsAUnitToo) {
  expect_both_named({unit_of_one_size("", "the root unit"), unit_of_one_size("block.1", "unit block.1")},
                    BackendChoice::kShm);
}

TEST(OtherPlaces, OfEveryCollective) {
  const std::vector<std::function<void(const DeviceMesh&, const CollectivePurpose&)>> collectives = {
      [](const DeviceMesh& mesh, const auto& purpose) {
        reduce_scatter_tensor(mesh, at::empty({1}), at::ones({2}), purpose);
      },
      [](const DeviceMesh& mesh, const auto& purpose) { all_reduce(mesh, at::ones({2}), ReduceOp::kSum, purpose); },
      [](const DeviceMesh& mesh, const auto& purpose) {
        broadcast(mesh, at::ones({2}), 0, purpose);
        barrier(mesh);
      },
      [](const DeviceMesh& mesh, const auto& purpose) { barrier(mesh, purpose); }};
  for (const auto& collective : collectives) {
    std::vector<Place> places;
    for (const char* name : {"one thing", "another thing"}) {
      places.push_back({name, [&, name](const DeviceMesh& mesh) { collective(mesh, CollectivePurpose::named(name)); }});
    }
    expect_both_named(places, BackendChoice::kShm);
  }
}

class OtherStages : public ::testing::TestWithParam<BackendChoice> {};

TEST_P(OtherStages, AreNotTakenForOneAnother) {
  expect_both_named({stage("load"), stage("data")}, GetParam());
  expect_both_named({stage("load"), texts("where groups meet")}, GetParam());
}

TEST_P(OtherStages, ARankThatFailedSaysItsOwnErrorWhereverTheOthersAre) {
  on_ranks(
      2,
      [](const DeviceMesh& mesh) {
        const auto fails = [] {
          throw InputError({.code = Code::kDataTooShort, .what = "no data", .where = "a file", .fix = "give it some"});
        };
        if (mesh.rank() == 0) {
          expect_refusal([&] { agree(mesh, "data", fails); }, Code::kDataTooShort, {"no data"});
        } else {
          expect_refusal([&] { agree(mesh, "weights", [] {}); }, Code::kCollectiveFailed, {"agree \"weights\""});
        }
      },
      GetParam());
}

TEST_P(OtherStages, RanksOfDifferentGridsAreRefusedTogetherBeforeAnyGroupIsFormed) {
  const int port = loopback_port();
  on_ranks(4, [&](const DeviceMesh& first) {
    const RankEnvironment environment{
        .rank = first.rank(), .world_size = 4, .master_port = port, .backend = GetParam()};
    expect_refusal(
        [&] {
          first.rank() == 3 ? DeviceMesh::connect(environment, seconds(60), {2, 2})
                            : DeviceMesh::connect(environment, seconds(60));
        },
        Code::kBadEnvironment,
        {concat("rank ", first.rank(), "/4"), "--replicas", "one axis on ranks 0, 1 and 2, 2 x 2 on rank 3"});
    barrier(first); // rank 0 keeps the store until all have their answer
  });
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         OtherStages,
                         ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo),
                         [](const auto& info) { return info.param == BackendChoice::kShm ? "shm" : "gloo"; });

TEST(LostRankByPlace, MessagesNameTheRootUnitAndTheStage) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    if (mesh.rank() == 1) {
      ::_exit(0); // no destructor runs, as in a rank that is killed
    }
    expect_refusal([&] { all_reduce(mesh, at::ones({1}), ReduceOp::kSum, std::string()); },
                   Code::kCollectiveFailed,
                   {"rank 0/2, all_reduce of the root unit"});
    expect_refusal([&] { agree(mesh, "data", [] {}); },
                   Code::kCollectiveFailed,
                   {"rank 0/2, all_gather of agree \"data\"", "rank 1"});
    expect_refusal([&] { barrier(mesh, CollectivePurpose::named("the end")); },
                   Code::kCollectiveFailed,
                   {"rank 0/2, barrier of the end"});
  });
}

} // namespace
} // namespace tieshard::testing
