// Which backend the ranks choose, and what the one over shared memory takes.

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/shm_rendezvous.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

using std::chrono::seconds;

/// Every rank of two with its own choice.
void connect_with(const std::vector<BackendChoice>& choices, const std::function<void(const RankEnvironment&)>& body) {
  const int port = loopback_port();
  on_ranks(static_cast<int>(choices.size()), [&](const DeviceMesh& first) {
    body({.rank = first.rank(),
          .world_size = first.size(),
          .master_port = port,
          .backend = choices[static_cast<std::size_t>(first.rank())]});
    barrier(first); // rank 0 holds the meeting point of both
  });
}

TEST(BackendChoice, RanksOfOneHostShareMemory) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    EXPECT_EQ(mesh.backend_name(), "shm");
    EXPECT_EQ(mesh.backend_note(), "");
  });
}

TEST(BackendChoice, AllRanksUseGlooWhereOneHasTo) {
  connect_with({BackendChoice::kAuto, BackendChoice::kGloo}, [](const RankEnvironment& environment) {
    const DeviceMesh mesh = DeviceMesh::connect(environment, seconds(20));
    EXPECT_EQ(mesh.backend_name(), "gloo");
    EXPECT_EQ(mesh.backend_note(), "rank 1 was told to use gloo");
    at::Tensor sum = at::ones({2});
    all_reduce(mesh, sum);
    EXPECT_EQ(sum[0].item<float>(), 2.0F);
  });
}

TEST(BackendChoice, SharedMemoryThatCannotBeIsAnErrorWhereItWasAskedFor) {
  connect_with({BackendChoice::kShm, BackendChoice::kGloo}, [](const RankEnvironment& environment) {
    if (environment.rank == 0) {
      expect_refusal([&] { DeviceMesh::connect(environment, seconds(5)); },
                     Code::kBadEnvironment,
                     {"rank 0/2", "rank 1 was told to use gloo", "TIESHARD_BACKEND"});
    } else {
      expect_refusal([&] { DeviceMesh::connect(environment, seconds(5)); },
                     Code::kRendezvousFailed,
                     {"rank 1/2", "rank 0 was told to share memory"});
    }
  });
}

/// Rank 0 of ranks 4 and 6, whose other one has said these things already.
ShmMeeting meet_with_one_that_says(const std::vector<std::pair<std::string, std::string>>& said) {
  c10d::HashStore store;
  for (const auto& [stage, text] : said) {
    store.set(stage + "/1", std::vector<std::uint8_t>(text.begin(), text.end()));
  }
  RollCall calls(store, 0, {4, 6}, seconds(5));
  return meet_over_shm(calls, true);
}

TEST(ShmRendezvous, OneRankOnAnotherHostKeepsAllFromIt) {
  const ShmMeeting meeting = meet_with_one_that_says({{"host", "another pid:[1] net:[1]"}});
  EXPECT_EQ(meeting.group, nullptr);
  EXPECT_EQ(meeting.why_not, "rank 6 is on another host than rank 4");
}

TEST(ShmRendezvous, OneRankThatCannotMapTheMemoryKeepsAllFromIt) {
  const ShmMeeting meeting = meet_with_one_that_says(
      {{"host", HostIdentity::own().to_text()}, {"memory", ""}, {"joined", "!/proc/1/fd/5: Permission denied"}});
  EXPECT_EQ(meeting.group, nullptr);
  EXPECT_EQ(meeting.why_not, "rank 6, /proc/1/fd/5: Permission denied");
}

/// As between users without rights over each other.
TEST(ShmRendezvous, ARankThatMayNotLookIntoTheOtherKeepsAllFromIt) {
  connect_with({BackendChoice::kAuto, BackendChoice::kAuto}, [](const RankEnvironment& environment) {
    const bool root = ::geteuid() == 0; // who may look into any process, while it is root
    if (environment.rank == 1 && root) {
      ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
    }
    ::prctl(PR_SET_DUMPABLE, 0);
    const DeviceMesh mesh = DeviceMesh::connect(environment, seconds(20));
    EXPECT_EQ(mesh.backend_name(), "gloo");
    EXPECT_THAT(mesh.backend_note(), ::testing::HasSubstr("rank 1, /proc/"));
    at::Tensor sum = at::ones({2});
    all_reduce(mesh, sum);
    EXPECT_EQ(sum[0].item<float>(), 2.0F);
  });
}

TEST(HostIdentity, IsTheSameForAllProcessesOfAHost) {
  const HostIdentity own = HostIdentity::own();
  EXPECT_EQ(own.kernel.size(), 36U);
  EXPECT_THAT(own.processes, ::testing::HasSubstr("pid:["));
  EXPECT_THAT(own.network, ::testing::HasSubstr("net:["));
  EXPECT_EQ(difference(own, HostIdentity::from_text(HostIdentity::own().to_text())), "");
}

TEST(HostIdentity, TellsHostsContainersAndNetworksApart) {
  const HostIdentity one{.kernel = "k", .processes = "pid:[1]", .network = "net:[1]"};
  EXPECT_EQ(difference(one, one), "");
  EXPECT_EQ(difference(one, {"l", "pid:[1]", "net:[1]"}), "on another host");
  EXPECT_EQ(difference(one, {"k", "pid:[2]", "net:[1]"}), "in another container (namespace of process ids)");
  EXPECT_EQ(difference(one, {"k", "pid:[1]", "net:[2]"}), "in another network namespace");
}

TEST(HostIdentity, ThatIsNotKnownIsEqualToNone) {
  const HostIdentity unknown = HostIdentity::from_text(HostIdentity().to_text());
  EXPECT_EQ(difference(unknown, unknown), "on another host");
  EXPECT_EQ(difference({"k", "", ""}, {"k", "", ""}), "in another container (namespace of process ids)");
}

TEST(ShmBackend, RefusesWhatItCannotMove) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const auto expect_failure = [](const std::function<void()>& action, const std::string& part) {
      expect_refusal(action, Code::kCollectiveFailed, {part});
    };
    expect_failure([&] { all_reduce(mesh, at::ones({4, 4}).t()); }, "contiguous CPU tensors");
    expect_failure([&] { all_reduce(mesh, at::ones({4}, at::kBool)); }, "does not reduce Bool");
    expect_failure([&] { all_gather_into_tensor(mesh, at::empty({5}), at::ones({2})); }, "got 5 and 2");
    expect_failure([&] { reduce_scatter_tensor(mesh, at::empty({2}), at::ones({4}, at::kDouble)); }, "dtype");
    std::vector<at::Tensor> tensors{at::ones({2})};
    EXPECT_ANY_THROW(mesh.backend()->send(tensors, 1 - static_cast<int>(mesh.rank()), 0));
    at::Tensor sum = at::ones({1}); // refusals before the first byte leave it usable
    all_reduce(mesh, sum);
    EXPECT_EQ(sum.item<float>(), 2.0F);
  });
}

TEST(ShmBackend, GathersIntoAListOfTensors) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    std::vector<std::vector<at::Tensor>> outputs{{at::empty({2}), at::empty({2}), at::empty({2})}};
    std::vector<at::Tensor> inputs{at::full({2}, static_cast<double>(mesh.rank()))};
    mesh.backend()->allgather(outputs, inputs)->wait();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(outputs[0][static_cast<std::size_t>(rank)][1].item<float>(), static_cast<float>(rank));
    }
  });
}

TEST(ShmBackend, AddsInRankOrderAndRoundsHalvesOnce) {
  on_ranks(3, [](const DeviceMesh& mesh) {
    const double brought[] = {1.0, 0.00390625, 0.00390625}; // each half a unit of 1.0 in bf16
    at::Tensor sum = at::full({70'000}, brought[mesh.rank()], at::kBFloat16);
    all_reduce(mesh, sum);
    EXPECT_TRUE((sum == 1.0078125).all().item<bool>());
    const double order[] = {1e8, -1e8, 1.0};
    at::Tensor whole = at::full({3}, order[mesh.rank()]);
    at::Tensor part = at::empty({1});
    reduce_scatter_tensor(mesh, part, whole);
    EXPECT_EQ(part.item<float>(), 1.0F);
  });
}

} // namespace
} // namespace tieshard::testing
