// What a rank sees when another one is gone, late, or never there.

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/collectives.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

class LostRank : public ::testing::TestWithParam<BackendChoice> {};

TEST_P(LostRank, OneThatIsGoneEndsACollectiveWithItsNameAndTheUnit) {
  const auto body = [](const DeviceMesh& mesh) {
    if (mesh.rank() == 1) {
      return;
    }
    const auto start = Clock::now();
    expect_refusal([&] { all_reduce(mesh, at::ones({4}), ReduceOp::kSum, "model.layers.3"); },
                   Code::kCollectiveFailed,
                   {"rank 0/2, all_reduce of unit model.layers.3"});
    EXPECT_LT(Clock::now() - start, seconds(10)); // far below the mesh's timeout of a minute
  };
  on_ranks(2, body, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         LostRank,
                         ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo),
                         [](const auto& info) { return info.param == BackendChoice::kShm ? "shm" : "gloo"; });

TEST(LostRankOverSharedMemory, OneThatEndsWithoutAWordIsNamed) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    if (mesh.rank() == 2) {
      ::_exit(0); // no destructor runs, as in a rank that is killed
    }
    for (const char* unit : {"a", "b"}) { // and in every later collective
      expect_refusal([&] { all_gather_into_tensor(mesh, at::empty({3}), at::ones({1}), unit); },
                     Code::kCollectiveFailed,
                     {concat(mesh.where(), ", all_gather of unit ", unit), "rank 2 (process ", "has ended"});
    }
  });
}

TEST_P(LostRank, OneThatIsLateEndsACollectiveAfterTheMeshsTimeout) {
  const int port = loopback_port();
  on_ranks(2, [&](const DeviceMesh& first) {
    const RankEnvironment environment{
        .rank = first.rank(), .world_size = 2, .master_port = port, .backend = GetParam()};
    const DeviceMesh mesh = DeviceMesh::connect(environment, milliseconds(1000));
    if (mesh.rank() == 0) {
      const auto start = Clock::now();
      expect_refusal([&] { barrier(mesh); }, Code::kCollectiveFailed, {"barrier"});
      EXPECT_LT(Clock::now() - start, milliseconds(3000));
    }
    barrier(first); // the late rank is only late
  });
}

TEST_P(LostRank, OneThatIsLateEndsEachCollectiveWithItsRankUnitAndOperation) {
  const std::vector<std::pair<std::string, std::function<void(const DeviceMesh&)>>> collectives = {
      {"all_gather",
       [](const DeviceMesh& mesh) { all_gather_into_tensor(mesh, at::empty({2}), at::ones({1}), "h.7"); }},
      {"reduce_scatter",
       [](const DeviceMesh& mesh) { reduce_scatter_tensor(mesh, at::empty({1}), at::ones({2}), "h.7"); }},
      {"all_reduce", [](const DeviceMesh& mesh) { all_reduce(mesh, at::ones({1}), ReduceOp::kSum, "h.7"); }},
      {"broadcast", [](const DeviceMesh& mesh) { broadcast(mesh, at::ones({1}), 1, "h.7"); }}};
  std::vector<int> ports;
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    ports.push_back(loopback_port());
  }
  on_ranks(2, [&](const DeviceMesh& first) {
    for (std::size_t i = 0; i < collectives.size(); ++i) {
      const DeviceMesh mesh = DeviceMesh::connect(
          {.rank = first.rank(), .world_size = 2, .master_port = ports[i], .backend = GetParam()}, milliseconds(1500));
      if (mesh.rank() == 0) {
        expect_refusal([&] { collectives[i].second(mesh); },
                       Code::kCollectiveFailed,
                       {concat("rank 0/2, ", collectives[i].first, " of unit h.7"),
                        GetParam() == BackendChoice::kShm ? "rank 1 (process " : "1500"});
      }
      barrier(first);
    }
  });
}

TEST(LostRankOfAGroup, IsNamedByItsNumberAmongAll) {
  const int port = loopback_port();
  on_ranks(4, [&](const DeviceMesh& first) {
    const RankEnvironment environment{.rank = first.rank(), .world_size = 4, .master_port = port};
    const DeviceMesh mesh = DeviceMesh::connect(environment, milliseconds(4000), {2, 2});
    if (mesh.rank() == 2) {
      expect_refusal([&] { all_reduce(mesh.axis("dp_shard"), at::ones({1}), ReduceOp::kSum, "layers.1"); },
                     Code::kCollectiveFailed,
                     {"rank 2/4, all_reduce of unit layers.1", "rank 3 (process ", "did not come within 4000 ms"});
    }
    barrier(first);
  });
}

TEST(LostMeetingPoint, IsNamedAfterTheTimeout) {
  const int port = loopback_port();
  on_ranks(1, [&](const DeviceMesh&) {
    const RankEnvironment environment{.rank = 1, .world_size = 2, .master_port = port};
    const auto start = Clock::now();
    expect_refusal([&] { DeviceMesh::connect(environment, milliseconds(1000)); },
                   Code::kRendezvousFailed,
                   {"rank 1/2", concat("127.0.0.1:", port), "waited up to 1 s for rank 0", "MASTER_ADDR"});
    EXPECT_LT(Clock::now() - start, seconds(8));
  });
}

TEST(DeviceMeshOfOneRank, NeedsNoConnection) {
  const DeviceMesh mesh;
  EXPECT_EQ(mesh.backend(), nullptr);
  EXPECT_EQ(mesh.where(), "rank 0/1");
  ASSERT_EQ(mesh.axes().size(), 1U);
  EXPECT_EQ(mesh.axes().front().name, "dp_shard");
  EXPECT_EQ(mesh.axes().front().size, 1);
}

} // namespace
} // namespace tieshard::testing
