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

TEST(LostRank, OneThatIsGoneEndsACollectiveWithItsNameAndTheRank) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    if (mesh.rank() == 1) {
      return;
    }
    const auto start = Clock::now();
    expect_refusal([&] { all_reduce(mesh, at::ones({4})); }, Code::kCollectiveFailed, {"rank 0/2", "all_reduce"});
    EXPECT_LT(Clock::now() - start, seconds(10)); // far below the mesh's timeout of a minute
  });
}

TEST(LostRank, OneThatIsLateEndsACollectiveAfterTheMeshsTimeout) {
  const int port = loopback_port();
  on_ranks(2, [&](const DeviceMesh& first) {
    RankEnvironment environment{.rank = first.rank(), .world_size = 2, .master_port = port};
    const DeviceMesh mesh = DeviceMesh::connect(environment, milliseconds(1000));
    if (mesh.rank() == 0) {
      const auto start = Clock::now();
      expect_refusal([&] { barrier(mesh); }, Code::kCollectiveFailed, {"barrier"});
      EXPECT_LT(Clock::now() - start, milliseconds(3000));
    }
    barrier(first); // the late rank is only late
  });
}

TEST(LostRank, AMeetingPointThatNobodyHoldsIsNamedAfterTheTimeout) {
  const int port = loopback_port();
  on_ranks(1, [&](const DeviceMesh&) {
    const RankEnvironment environment{.rank = 1, .world_size = 2, .master_port = port};
    const auto start = Clock::now();
    expect_refusal([&] { DeviceMesh::connect(environment, milliseconds(1000)); },
                   Code::kRendezvousFailed,
                   {"rank 1/2", concat("127.0.0.1:", port), "waited up to 1 s", "MASTER_ADDR"});
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
