// Collectives between rectangles against the same by hand: whole arrays that every rank knows.

#include "tieshard/core/shm/shm_regions.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tieshard/core/base/float_formats.h"
#include "tieshard/core/shm/reduce_elements.h"

#include "tests/support/shm_ranks.h"

namespace tieshard::testing {
namespace {

/// A whole array [rows, columns] of floats that is cut on its columns, the last ranks' parts smaller or empty.
struct Cut {
  std::size_t rows = 1;
  std::size_t columns = 1;

  std::size_t begin(std::uint32_t rank, std::uint32_t ranks) const {
    return std::min(columns, rank * ((columns + ranks - 1) / ranks));
  }
  /// Where a rank's columns lie in `whole`.
  Region region(std::byte* whole, std::size_t element, std::uint32_t rank, std::uint32_t ranks) const {
    const std::size_t first = begin(rank, ranks);
    return {.data = whole + first * element,
            .rows = rows,
            .row_bytes = (begin(rank + 1, ranks) - first) * element,
            .stride = columns * element};
  }
};

/// Pieces of the test group hold 512 bytes: some cuts lie in one, others go around the ring several times.
const std::vector<std::vector<Cut>> kCuts = {
    {{1, 1}}, {{3, 7}}, {{0, 5}}, {{5, 2}, {1, 9}, {40, 33}}, {{700, 13}, {1, 1}, {2, 4096}}};

using Floats = std::vector<float>;

Floats values(std::uint32_t seed, std::size_t count) {
  Floats made(count);
  for (std::size_t i = 0; i < count; ++i) {
    made[i] = static_cast<float>((i * 7 + seed * 131) % 1009) / 8.0F - 50.0F;
  }
  return made;
}

std::byte* bytes_in(Floats& floats) {
  return reinterpret_cast<std::byte*>(floats.data());
}

std::vector<Part> parts_of(const std::vector<Cut>& cuts, std::vector<Floats>& wholes, std::uint32_t ranks) {
  std::vector<Part> parts(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      parts[rank].push_back(cuts[i].region(bytes_in(wholes[i]), sizeof(float), rank, ranks));
    }
  }
  return parts;
}

std::vector<Floats> wholes_of(const std::vector<Cut>& cuts, std::uint32_t seed) {
  std::vector<Floats> wholes;
  for (const Cut& cut : cuts) {
    wholes.push_back(values(seed, cut.rows * cut.columns));
  }
  return wholes;
}

/// A contiguous copy of a part, and the part that it is itself.
struct Packed {
  std::vector<Floats> shards;
  Part part;
};

Packed pack(const Part& part) {
  Packed packed;
  for (const Region& region : part) {
    Floats shard(region.rows * region.row_bytes / sizeof(float));
    for (std::size_t row = 0; row < region.rows && region.row_bytes > 0; ++row) {
      std::memcpy(bytes_in(shard) + row * region.row_bytes, region.data + row * region.stride, region.row_bytes);
    }
    packed.shards.push_back(std::move(shard));
  }
  for (std::size_t i = 0; i < part.size(); ++i) {
    const std::size_t bytes = packed.shards[i].size() * sizeof(float);
    packed.part.push_back({.data = bytes_in(packed.shards[i]), .rows = 1, .row_bytes = bytes, .stride = bytes});
  }
  return packed;
}

class Regions : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Regions, AreGatheredWhereTheyLieInTheWhole) {
  on_shm_threads({.ranks = GetParam(), .piece_bytes = 512}, [](ShmGroup& group) {
    for (const auto& cuts : kCuts) {
      std::vector<Floats> wholes = wholes_of(cuts, 1);
      const Packed mine = pack(parts_of(cuts, wholes, group.size())[group.rank()]);
      std::vector<Floats> gathered = wholes_of(cuts, 2);
      all_gather_regions(group, parts_of(cuts, gathered, group.size()), mine.part);
      EXPECT_EQ(gathered, wholes);
    }
  });
}

TEST_P(Regions, AreGatheredInPlace) {
  on_shm_threads({.ranks = GetParam(), .piece_bytes = 512}, [](ShmGroup& group) {
    for (const auto& cuts : kCuts) {
      const std::vector<Floats> wholes = wholes_of(cuts, 1);
      std::vector<Floats> gathered = wholes_of(cuts, group.rank() + 10);
      std::vector<Floats> known = wholes;
      const std::vector<Part> parts = parts_of(cuts, gathered, group.size());
      const Packed mine = pack(parts_of(cuts, known, group.size())[group.rank()]);
      for (std::size_t i = 0; i < cuts.size(); ++i) { // this rank's columns are right before
        const Region& region = parts[group.rank()][i];
        for (std::size_t row = 0; row < region.rows && region.row_bytes > 0; ++row) {
          std::memcpy(region.data + row * region.stride, mine.part[i].data + row * region.row_bytes, region.row_bytes);
        }
      }
      all_gather_regions(group, parts, parts[group.rank()]);
      EXPECT_EQ(gathered, wholes);
    }
  });
}

TEST_P(Regions, AreSummedInRankOrder) {
  on_shm_threads({.ranks = GetParam(), .piece_bytes = 512}, [](ShmGroup& group) {
    for (const auto& cuts : kCuts) {
      std::vector<Floats> mine = wholes_of(cuts, group.rank());
      std::vector<Floats> sums = wholes_of(cuts, 0);
      for (std::uint32_t rank = 1; rank < group.size(); ++rank) {
        const std::vector<Floats> others = wholes_of(cuts, rank);
        for (std::size_t i = 0; i < sums.size(); ++i) {
          for (std::size_t at = 0; at < sums[i].size(); ++at) {
            sums[i][at] += others[i][at];
          }
        }
      }
      const Packed expected = pack(parts_of(cuts, sums, group.size())[group.rank()]);
      Packed output = expected;
      output = pack(output.part);
      for (Floats& shard : output.shards) {
        std::fill(shard.begin(), shard.end(), -1.0F);
      }
      reduce_scatter_regions(group, output.part, parts_of(cuts, mine, group.size()), DType::kF32, DType::kF32);
      EXPECT_EQ(output.shards, expected.shards);
    }
  });
}

TEST_P(Regions, OfBfloat16AreSummedInFloat32WithoutRounding) {
  on_shm_threads({.ranks = GetParam(), .piece_bytes = 512}, [](ShmGroup& group) {
    constexpr std::size_t kCount = 1000; // of each rank's part
    const auto bfloat16 = [](std::uint32_t rank, std::size_t i) {
      return BFloat16Format::encode(1.0F + static_cast<float>((i + rank * 17) % 128) / 128.0F);
    };
    std::vector<std::uint16_t> mine(kCount * group.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i] = bfloat16(group.rank(), i);
    }
    std::vector<Part> inputs(group.size());
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      inputs[rank] = {{.data = reinterpret_cast<std::byte*>(mine.data() + rank * kCount),
                       .rows = 10,
                       .row_bytes = kCount / 10 * 2,
                       .stride = kCount / 10 * 2}};
    }
    Floats output(kCount, -1.0F);
    const std::size_t bytes = kCount * sizeof(float);
    reduce_scatter_regions(group,
                           {{.data = bytes_in(output), .rows = 1, .row_bytes = bytes, .stride = bytes}},
                           inputs,
                           DType::kBF16,
                           DType::kF32);
    for (std::size_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
        sum += BFloat16Format::decode(bfloat16(rank, group.rank() * kCount + i));
      }
      ASSERT_EQ(output[i], sum) << i;
    }
  });
}

/// Floats that `from` gives `to`: of several sizes, some none; to itself too.
std::size_t count_between(std::uint32_t from, std::uint32_t to) {
  return (from * 5 + to * 3) % 4 * 101;
}

TEST_P(Regions, AreGivenByEachRankToEachOther) {
  on_shm_threads({.ranks = GetParam(), .piece_bytes = 512}, [](ShmGroup& group) {
    const std::uint32_t own = group.rank();
    std::vector<Floats> sent;
    std::vector<Floats> received;
    std::vector<Part> inputs(group.size());
    std::vector<Part> outputs(group.size());
    for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
      sent.push_back(values(own * 10 + peer, count_between(own, peer)));
      received.emplace_back(2 * count_between(peer, own), -1.0F); // every second float is its place
      const std::size_t bytes = sent[peer].size() * sizeof(float);
      inputs[peer] = {{.data = bytes_in(sent[peer]), .rows = 1, .row_bytes = bytes, .stride = bytes}};
      outputs[peer] = {{.data = bytes_in(received[peer]),
                        .rows = count_between(peer, own),
                        .row_bytes = sizeof(float),
                        .stride = 2 * sizeof(float)}};
    }
    all_to_all_regions(group, outputs, inputs, 3 * 101 * sizeof(float));
    for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
      const Floats expected = values(peer * 10 + own, count_between(peer, own));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(received[peer][2 * i], expected[i]) << peer << " " << i;
        ASSERT_EQ(received[peer][2 * i + 1], -1.0F) << peer << " " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Regions, ::testing::Values(1, 2, 3, 4, 5));

} // namespace
} // namespace tieshard::testing
