// Parts of whole tensors, gathered and summed: over shared memory, where they lie, and over Gloo, packed.

#include "tieshard/runtime/mesh/part_collectives.h"

#include <vector>

#include <ATen/ATen.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

class PartCollectives : public ::testing::TestWithParam<std::tuple<int, BackendChoice>> {
 protected:
  void on_each(const std::function<void(const DeviceMesh&)>& body) const {
    on_ranks(std::get<0>(GetParam()), body, std::get<1>(GetParam()));
  }
};

struct Wanted {
  std::vector<std::int64_t> shape;
  std::int64_t dim; ///< that is cut; -1: every rank has all of it
};

/// Even and uneven cuts, empty parts, first, middle and last dim, 0-dim.
const std::vector<Wanted> kWanted = {
    {{8, 6}, 0}, {{8, 6}, 1}, {{3, 5, 7}, 1}, {{2}, 0}, {{0, 4}, 1}, {{}, -1}, {{1, 9}, 1}};

at::Tensor whole_of(const Wanted& wanted, std::int64_t seed, at::ScalarType dtype) {
  const std::int64_t count = c10::multiply_integers(wanted.shape);
  return (at::remainder(at::arange(count) * 7 + seed * 13, 64) - 20).view(wanted.shape).to(dtype);
}

std::vector<at::Tensor> parts_of(const at::Tensor& whole, std::int64_t dim, std::int64_t ranks) {
  std::vector<at::Tensor> parts;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    if (dim < 0) {
      parts.push_back(whole);
      continue;
    }
    const std::int64_t size = whole.size(dim);
    const std::int64_t chunk = (size + ranks - 1) / ranks;
    const std::int64_t begin = std::min(size, rank * chunk);
    parts.push_back(whole.narrow(dim, begin, std::min(size, begin + chunk) - begin));
  }
  return parts;
}

TEST_P(PartCollectives, GatherEveryRanksShardIntoItsPlace) {
  on_each([](const DeviceMesh& mesh) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      std::vector<CutTensor> tensors;
      std::vector<at::Tensor> wholes;
      for (const Wanted& wanted : kWanted) {
        const at::Tensor known = whole_of(wanted, 1, dtype);
        wholes.push_back(at::full_like(known, -1));
        const auto rank = static_cast<std::size_t>(mesh.rank());
        tensors.push_back({.shard = parts_of(known, wanted.dim, mesh.size())[rank].clone(at::MemoryFormat::Contiguous),
                           .parts = parts_of(wholes.back(), wanted.dim, mesh.size())});
      }
      all_gather_parts(mesh, tensors, "layer");
      for (std::size_t i = 0; i < kWanted.size(); ++i) {
        EXPECT_TRUE(at::equal(wholes[i], whole_of(kWanted[i], 1, dtype))) << i << " " << dtype;
      }
    }
  });
}

TEST_P(PartCollectives, SumEveryRanksPartIntoTheShard) {
  on_each([](const DeviceMesh& mesh) {
    for (const auto& [sent, kept] : {std::pair{at::kFloat, at::kFloat},
                                     {at::kBFloat16, at::kBFloat16},
                                     {at::kBFloat16, at::kFloat},
                                     {at::kDouble, at::kDouble}}) {
      std::vector<CutTensor> tensors;
      std::vector<at::Tensor> expected;
      for (const Wanted& wanted : kWanted) {
        at::Tensor sum = at::zeros(wanted.shape, kept);
        for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
          sum += whole_of(wanted, rank, sent).to(kept);
        }
        const auto rank = static_cast<std::size_t>(mesh.rank());
        expected.push_back(parts_of(sum, wanted.dim, mesh.size())[rank]);
        tensors.push_back({.shard = at::full(expected.back().sizes(), -1, kept),
                           .parts = parts_of(whole_of(wanted, mesh.rank(), sent), wanted.dim, mesh.size())});
      }
      reduce_scatter_parts(mesh, tensors, "layer");
      for (std::size_t i = 0; i < kWanted.size(); ++i) {
        EXPECT_TRUE(at::equal(tensors[i].shard, expected[i])) << i << " " << sent << " " << kept;
      }
    }
  });
}

TEST_P(PartCollectives, OfNothingAreNoCollective) {
  on_each([](const DeviceMesh& mesh) {
    if (mesh.rank() == 0) { // nobody waits for it
      all_gather_parts(mesh, {}, "layer");
      reduce_scatter_parts(mesh, {}, "layer");
    }
  });
}

std::string title(const ::testing::TestParamInfo<PartCollectives::ParamType>& info) {
  const auto [ranks, backend] = info.param;
  return concat(ranks, ranks == 1 ? "rank" : "ranks", backend == BackendChoice::kShm ? "_shm" : "_gloo");
}

TEST(StartedGather, GoesOnOverGlooWhileItsRankDoesOtherThings) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  on_ranks(
      2,
      [&](const DeviceMesh& mesh) {
        const at::Tensor whole = at::zeros({8});
        const CutTensor tensor{.shard = at::full({4}, mesh.rank() + 1.0), .parts = parts_of(whole, 0, 2)};
        char go = 'g';
        if (mesh.rank() == 1) { // takes part only when rank 0 has come back from its start
          ASSERT_EQ(::read(pipe[0], &go, 1), 1);
        }
        const auto wait = start_all_gather_parts(mesh, {tensor}, "unit");
        if (mesh.rank() == 0) {
          ASSERT_EQ(::write(pipe[1], &go, 1), 1);
        }
        wait();
        EXPECT_TRUE(at::equal(whole, at::tensor({1.F, 1.F, 1.F, 1.F, 2.F, 2.F, 2.F, 2.F})));
      },
      BackendChoice::kGloo);
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         PartCollectives,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo)),
                         title);

} // namespace
} // namespace tieshard::testing
