#include "tieshard/runtime/mesh/local_device.h"

#include <gtest/gtest.h>

#include "tieshard/runtime/mesh/collectives.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

RankEnvironment on_cuda(std::int64_t local_rank) {
  RankEnvironment environment;
  environment.device = DeviceChoice::kCuda;
  environment.local_rank = local_rank;
  return environment;
}

TEST(LocalDevice, IsTheHostUnlessAskedOtherwise) {
  EXPECT_EQ(local_device({}), at::Device(at::kCPU));
  EXPECT_EQ(DeviceMesh().device(), at::Device(at::kCPU));
  EXPECT_NO_THROW(require_device_in_build(DeviceChoice::kCpu));
}

TEST(LocalDevice, ThatTheBuildOrTheMachineHasNotIsRefused) {
  expect_refusal([] { local_device(on_cuda(999)); }, Code::kDeviceUnavailable, {"cuda"});
  expect_refusal(
      [] { DeviceMesh::connect(on_cuda(999), std::chrono::seconds(5)); }, Code::kDeviceUnavailable, {"cuda"});
}

TEST(LocalDevice, IsRefusedOnAllRanksTogether) {
  const int port = loopback_port();
  on_ranks(2, [&](const DeviceMesh& ranks) {
    RankEnvironment environment = on_cuda(999);
    environment.rank = ranks.rank();
    environment.world_size = ranks.size();
    environment.master_port = port;
    environment.device = ranks.rank() == 1 ? DeviceChoice::kCuda : DeviceChoice::kCpu;
    expect_refusal([&] { DeviceMesh::connect(environment, std::chrono::seconds(60)); },
                   ranks.rank() == 1 ? Code::kDeviceUnavailable : Code::kPeerFailed,
                   {ranks.rank() == 1 ? "cuda" : "rank 1 says: a device is asked for"});
  });
}

TEST(LocalDevice, OfAnAxisIsThatOfTheMesh) {
  on_grid({.replicas = 1, .shards = 2}, [](const DeviceMesh& mesh) {
    for (const char* axis : {"dp_replicate", "dp_shard"}) {
      EXPECT_EQ(mesh.axis(axis).device(), mesh.device());
    }
    EXPECT_EQ(mesh.backend(at::kCPU), mesh.backend());
    expect_refusal([&] { mesh.backend(at::Device(at::kCUDA, 0)); }, Code::kWrongState, {"expected cpu", "cuda:0"});
  });
}

} // namespace
} // namespace tieshard::testing
