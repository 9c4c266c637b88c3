#include "tieshard/runtime/mesh/collectives.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

/// On so many ranks, over shared memory and over Gloo.
class Collectives : public ::testing::TestWithParam<std::tuple<int, BackendChoice>> {
 protected:
  static void on_each(const std::function<void(const DeviceMesh&)>& body) {
    on_ranks(std::get<0>(GetParam()), body, std::get<1>(GetParam()));
  }
};

constexpr std::int64_t kLength = 5;

/// What `rank` brings: small integers, which every dtype and every order of summation keeps exactly.
at::Tensor values_of(std::int64_t rank, std::int64_t count, at::ScalarType dtype) {
  return (at::arange(count, at::kLong) * (rank + 1) - 3 * rank).to(dtype);
}

TEST_P(Collectives, AllGatherPutsTheRanksInOrder) {
  on_each([](const DeviceMesh& mesh) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
      at::Tensor output = at::full({mesh.size() * kLength}, 99, dtype);
      all_gather_into_tensor(mesh, output, values_of(mesh.rank(), kLength, dtype));
      for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
        EXPECT_TRUE(at::equal(output.narrow(0, rank * kLength, kLength), values_of(rank, kLength, dtype)))
            << dtype << " of rank " << rank;
      }
    }
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsPartOfTheSum) {
  on_each([](const DeviceMesh& mesh) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const std::int64_t whole = mesh.size() * kLength;
      at::Tensor sum = at::zeros({whole}, dtype);
      for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
        sum += values_of(rank, whole, dtype);
      }
      at::Tensor output = at::full({kLength}, 99, dtype);
      reduce_scatter_tensor(mesh, output, values_of(mesh.rank(), whole, dtype));
      EXPECT_TRUE(at::equal(output, sum.narrow(0, mesh.rank() * kLength, kLength))) << dtype;
    }
  });
}

TEST_P(Collectives, AllReduceKnowsSumMinAndMax) {
  on_each([](const DeviceMesh& mesh) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
      std::vector<at::Tensor> all;
      for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
        all.push_back(values_of(rank, kLength, dtype));
      }
      const at::Tensor stacked = at::stack(all);
      const std::pair<ReduceOp, at::Tensor> cases[] = {{ReduceOp::kSum, stacked.sum(0).to(dtype)},
                                                       {ReduceOp::kMin, stacked.amin(0)},
                                                       {ReduceOp::kMax, stacked.amax(0)}};
      for (const auto& [op, expected] : cases) {
        at::Tensor tensor = values_of(mesh.rank(), kLength, dtype);
        all_reduce(mesh, tensor, op);
        EXPECT_TRUE(at::equal(tensor, expected)) << dtype << " op " << static_cast<int>(op);
      }
    }
  });
}

TEST_P(Collectives, ATensorWithoutElementsIsNoHindrance) {
  on_each([](const DeviceMesh& mesh) {
    at::Tensor output = at::empty({0});
    all_gather_into_tensor(mesh, output, at::empty({0}));
    reduce_scatter_tensor(mesh, output, at::empty({0}));
    all_reduce(mesh, output);
    EXPECT_EQ(output.numel(), 0);
    at::Tensor after = at::ones({1});
    all_reduce(mesh, after);
    EXPECT_EQ(after.item<float>(), static_cast<float>(mesh.size()));
  });
}

TEST_P(Collectives, TextsOfEveryLengthComeInRankOrder) {
  on_each([](const DeviceMesh& mesh) {
    const auto text_of = [](std::int64_t rank) {
      return rank % 2 == 0 ? std::string() : std::string(static_cast<std::size_t>(1000 * rank), '\0') + "end";
    };
    const std::vector<std::string> texts =
        all_gather_text(mesh, text_of(mesh.rank()), CollectivePurpose::named("texts"));
    ASSERT_EQ(texts.size(), static_cast<std::size_t>(mesh.size()));
    for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
      EXPECT_EQ(texts[static_cast<std::size_t>(rank)], text_of(rank)) << rank;
    }
    for (const std::string& text : all_gather_text(mesh, "", CollectivePurpose::named("empty texts"))) {
      EXPECT_EQ(text, "");
    }
  });
}

TEST_P(Collectives, NoRankPassesABarrierBeforeTheLastHasCome) {
  using Clock = std::chrono::steady_clock;
  on_each([](const DeviceMesh& mesh) {
    barrier(mesh);
    const auto start = Clock::now();
    const bool late = mesh.rank() == mesh.size() - 1;
    if (late) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    barrier(mesh);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(150)) << mesh.where();
  });
}

TEST_P(Collectives, BroadcastGivesEveryRankTheRootsTensor) {
  on_each([](const DeviceMesh& mesh) {
    for (std::int64_t root = 0; root < mesh.size(); ++root) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
        at::Tensor tensor = values_of(mesh.rank(), kLength, dtype);
        broadcast(mesh, tensor, root);
        EXPECT_TRUE(at::equal(tensor, values_of(root, kLength, dtype))) << dtype << " from " << root;
      }
    }
  });
}

std::string title(const ::testing::TestParamInfo<Collectives::ParamType>& info) {
  const auto [ranks, backend] = info.param;
  return concat(ranks, ranks == 1 ? "rank" : "ranks", backend == BackendChoice::kShm ? "_shm" : "_gloo");
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         Collectives,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo)),
                         title);

} // namespace
} // namespace tieshard::testing
