// Bytes that every rank gives every other one, over shared memory and over Gloo.

#include "tieshard/runtime/mesh/all_to_all.h"

#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

#include "tests/support/ranks.h"

namespace tieshard::testing {
namespace {

class AllToAll : public ::testing::TestWithParam<std::tuple<int, BackendChoice>> {};

/// Rows of three bytes that `from` gives `to`: none for some.
std::size_t rows_between(std::int64_t from, std::int64_t to) {
  return static_cast<std::size_t>((from * 3 + to) % 3) * 7;
}

std::byte byte_of(std::int64_t from, std::int64_t to, std::size_t i) {
  return static_cast<std::byte>(static_cast<std::size_t>(from) * 50 + static_cast<std::size_t>(to) * 10 + i % 7);
}

TEST_P(AllToAll, PutsTheBytesOfEveryRankWhereTheirRowsLie) {
  const auto [ranks, backend] = GetParam();
  on_ranks(
      ranks,
      [](const DeviceMesh& mesh) {
        const std::int64_t own = mesh.rank();
        const auto size = static_cast<std::size_t>(mesh.size());
        std::vector<std::vector<std::byte>> sent(size);
        std::vector<std::vector<std::byte>> received(size);
        std::vector<Part> inputs(size);
        std::vector<Part> outputs(size);
        for (std::size_t i = 0; i < size; ++i) {
          const auto peer = static_cast<std::int64_t>(i);
          for (std::size_t at = 0; at < 3 * rows_between(own, peer); ++at) {
            sent[i].push_back(byte_of(own, peer, at));
          }
          inputs[i] = {{.data = sent[i].data(), .rows = 1, .row_bytes = sent[i].size(), .stride = sent[i].size()}};
          received[i].assign(5 * rows_between(peer, own), std::byte{0xFF});
          outputs[i] = {{.data = received[i].data(), .rows = rows_between(peer, own), .row_bytes = 3, .stride = 5}};
        }
        all_to_all(mesh, outputs, inputs, 3 * 2 * 7, CollectivePurpose::named("a test"));
        for (std::size_t i = 0; i < size; ++i) {
          const auto peer = static_cast<std::int64_t>(i);
          for (std::size_t row = 0; row < rows_between(peer, own); ++row) {
            for (std::size_t column = 0; column < 5; ++column) {
              const std::byte expected = column < 3 ? byte_of(peer, own, row * 3 + column) : std::byte{0xFF};
              ASSERT_EQ(received[i][row * 5 + column], expected) << "from " << i << ", row " << row;
            }
          }
        }
      },
      backend);
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         AllToAll,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo)),
                         [](const auto& info) {
                           const bool shm = std::get<1>(info.param) == BackendChoice::kShm;
                           return concat(std::get<0>(info.param), "ranks", shm ? "_shm" : "_gloo");
                         });

} // namespace
} // namespace tieshard::testing
