#include "tieshard/core/shm/shm_collectives.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/float_formats.h"
#include "tieshard/core/shm/reduce_elements.h"

#include "tests/support/diagnostics.h"
#include "tests/support/shm_ranks.h"

namespace tieshard::testing {
namespace {

using Bytes = std::vector<std::byte>;

#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kLarge = 3'000'007;
#else
constexpr std::size_t kLarge = 150'000'007;
#endif

constexpr DType kReducible[] = {
    DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8};
/// Around a piece (512 bytes here) and its parts, and several times around the ring.
constexpr std::size_t kCounts[] = {0, 1, 7, 63, 64, 65, 127, 128, 513, 1001, 5000};

std::size_t element_bytes(DType dtype) {
  return static_cast<std::size_t>(bits(dtype)) / 8;
}

/// What `rank` brings: floats whose sums round, with every sign and exponent near 1; random bytes for integers.
Bytes values_of(std::uint32_t rank, std::size_t count, DType dtype, std::uint32_t seed = 0) {
  std::mt19937 random(rank * 977 + seed + 1);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  Bytes values(count * element_bytes(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    const auto put = [&](auto element) { std::memcpy(values.data() + i * sizeof(element), &element, sizeof(element)); };
    switch (dtype) {
      case DType::kF32:
        put(value);
        break;
      case DType::kF64:
        put(static_cast<double>(value) / 3);
        break;
      case DType::kBF16:
        put(BFloat16Format::encode(value));
        break;
      case DType::kF16:
        put(Float16Format::encode(value));
        break;
      default: {
        const std::uint64_t any = std::uint64_t{random()} << 32 | random();
        std::memcpy(values.data() + i * element_bytes(dtype), &any, element_bytes(dtype));
      }
    }
  }
  return values;
}

/// The reduction over all ranks, all at once.
Bytes reduced(std::uint32_t ranks, std::size_t count, DType dtype, Reduction reduction, std::uint32_t seed = 0) {
  std::vector<Bytes> all;
  std::vector<const std::byte*> arrays;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    all.push_back(values_of(rank, count, dtype, seed));
    arrays.push_back(all.back().data());
  }
  Bytes sum(count * element_bytes(dtype));
  reduce_elements(reduction, dtype, sum.data(), arrays, count);
  return sum;
}

Bytes part_of(const Bytes& whole, std::uint32_t rank, std::size_t bytes) {
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(rank * bytes);
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

void expect_all_gather(ShmGroup& group, std::size_t count, DType dtype) {
  const std::size_t bytes = count * element_bytes(dtype);
  Bytes output(group.size() * bytes, std::byte{99});
  all_gather(group, output.data(), values_of(group.rank(), count, dtype).data(), bytes);
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    EXPECT_EQ(part_of(output, rank, bytes), values_of(rank, count, dtype)) << name(dtype) << " x " << count;
  }
}

void expect_reduce_scatter(ShmGroup& group, std::size_t count, DType dtype, Reduction reduction) {
  const std::size_t bytes = count * element_bytes(dtype);
  Bytes output(bytes, std::byte{99});
  const Bytes input = values_of(group.rank(), count * group.size(), dtype);
  reduce_scatter(group, output.data(), input.data(), count, dtype, reduction);
  EXPECT_EQ(output, part_of(reduced(group.size(), count * group.size(), dtype, reduction), group.rank(), bytes))
      << name(dtype) << " x " << count;
}

void expect_all_reduce(ShmGroup& group, std::size_t count, DType dtype, Reduction reduction) {
  Bytes data = values_of(group.rank(), count, dtype);
  all_reduce(group, data.data(), count, dtype, reduction);
  EXPECT_EQ(data, reduced(group.size(), count, dtype, reduction)) << name(dtype) << " x " << count;
}

void expect_broadcast(ShmGroup& group, std::size_t bytes, std::uint32_t root) {
  Bytes data = values_of(group.rank(), bytes, DType::kU8);
  broadcast(group, data.data(), bytes, root);
  EXPECT_EQ(data, values_of(root, bytes, DType::kU8)) << bytes << " from " << root;
}

class ShmCollectives : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  /// Small pieces, so that every size here takes several; the count of steps wraps around on the way.
  ShmShape shape() const {
    return {.ranks = GetParam(), .first_step = 0xFFFFFFF0, .piece_bytes = 512};
  }
};

TEST_P(ShmCollectives, AllGatherPutsTheRanksInOrder) {
  on_shm_threads(shape(), [](ShmGroup& group) {
    for (const std::size_t count : kCounts) {
      expect_all_gather(group, count, DType::kU8);
      expect_all_gather(group, count, DType::kF32);
    }
  });
}

TEST_P(ShmCollectives, AllGatherTakesAnInputThatIsItsPlaceInTheOutput) {
  on_shm_threads(shape(), [](ShmGroup& group) {
    constexpr std::size_t kBytes = 3000;
    Bytes output(group.size() * kBytes);
    const Bytes mine = values_of(group.rank(), kBytes, DType::kU8);
    std::byte* place = output.data() + group.rank() * kBytes;
    std::memcpy(place, mine.data(), kBytes);
    all_gather(group, output.data(), place, kBytes);
    for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
      EXPECT_EQ(part_of(output, rank, kBytes), values_of(rank, kBytes, DType::kU8));
    }
  });
}

TEST_P(ShmCollectives, ReduceScatterGivesEachRankItsPartInEveryDtype) {
  on_shm_threads(shape(), [](ShmGroup& group) {
    for (const DType dtype : kReducible) {
      for (const std::size_t count : kCounts) {
        expect_reduce_scatter(group, count, dtype, Reduction::kSum);
      }
      expect_reduce_scatter(group, 77, dtype, Reduction::kMin);
      expect_reduce_scatter(group, 77, dtype, Reduction::kMax);
    }
  });
}

TEST_P(ShmCollectives, ReduceScatterTakesAnOutputThatIsItsPlaceInTheInput) {
  on_shm_threads(shape(), [](ShmGroup& group) {
    constexpr std::size_t kCount = 1234;
    Bytes input = values_of(group.rank(), kCount * group.size(), DType::kF32);
    std::byte* place = input.data() + group.rank() * kCount * 4;
    reduce_scatter(group, place, input.data(), kCount, DType::kF32, Reduction::kSum);
    EXPECT_EQ(
        part_of(input, group.rank(), kCount * 4),
        part_of(reduced(group.size(), kCount * group.size(), DType::kF32, Reduction::kSum), group.rank(), kCount * 4));
  });
}

TEST_P(ShmCollectives, AllReduceGivesEveryRankTheSameInEveryDtype) {
  on_shm_threads(shape(), [](ShmGroup& group) {
    for (const DType dtype : kReducible) {
      for (const std::size_t count : kCounts) {
        expect_all_reduce(group, count, dtype, Reduction::kSum);
      }
      expect_all_reduce(group, 3, dtype, Reduction::kMin);
      expect_all_reduce(group, 777, dtype, Reduction::kMin);
      expect_all_reduce(group, 777, dtype, Reduction::kMax);
    }
  });
}

TEST_P(ShmCollectives, BroadcastGivesEveryRankTheRootsBytes) {
  on_shm_threads(shape(), [](ShmGroup& group) {
    for (std::uint32_t root = 0; root < group.size(); ++root) {
      for (const std::size_t bytes : kCounts) {
        expect_broadcast(group, bytes, root);
      }
    }
  });
}

TEST_P(ShmCollectives, NoRankPassesABarrierBeforeTheLastHasCome) {
  std::atomic<std::uint32_t> came{0};
  on_shm_threads(shape(), [&](ShmGroup& group) {
    for (std::uint32_t turn = 1; turn <= 50; ++turn) {
      came.fetch_add(1);
      barrier(group);
      EXPECT_GE(came.load(), turn * group.size());
      barrier(group);
    }
  });
}

TEST_P(ShmCollectives, TheBitsDoNotHangOnWhoIsFast) {
  on_shm_processes(shape(), [](ShmGroup& group) {
    std::mt19937 random(group.rank() + static_cast<std::uint32_t>(::getpid()));
    for (int turn = 0; turn < 30; ++turn) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      expect_reduce_scatter(group, 501, DType::kF32, Reduction::kSum);
      expect_reduce_scatter(group, 77, DType::kBF16, Reduction::kSum);
      expect_all_reduce(group, turn % 2 == 0 ? 3 : 501, DType::kF32, Reduction::kSum);
      expect_all_gather(group, 501, DType::kU8);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmCollectives, ::testing::Values(1U, 2U, 3U, 4U, 5U), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

TEST(ShmCollectivesOfProcesses, GatherAndReduceHundredsOfMegabytes) {
  on_shm_processes({.ranks = 2}, [](ShmGroup& group) {
    std::vector<std::uint8_t> input(2 * kLarge);
    for (std::size_t i = 0; i < input.size(); i += 997) {
      input[i] = static_cast<std::uint8_t>(i / 997 + group.rank());
    }
    std::vector<std::uint8_t> output(2 * kLarge);
    auto* bytes = reinterpret_cast<std::byte*>(input.data());
    all_gather(group, reinterpret_cast<std::byte*>(output.data()), bytes, kLarge);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (std::size_t i = 0; i < kLarge; i += 997) {
        ASSERT_EQ(output[rank * kLarge + i], static_cast<std::uint8_t>(i / 997 + rank)) << i;
      }
    }
    output.resize(kLarge);
    reduce_scatter(group, reinterpret_cast<std::byte*>(output.data()), bytes, kLarge, DType::kU8, Reduction::kSum);
    const std::size_t first = group.rank() * kLarge;
    for (std::size_t i = (first + 996) / 997 * 997; i < first + kLarge; i += 997) {
      ASSERT_EQ(output[i - first], static_cast<std::uint8_t>(2 * (i / 997) + 1)) << i;
    }
  });
}

TEST(ShmCollectivesOfProcesses, DifferentCallsAreRefusedAndBothAreNamed) {
  on_shm_processes({.ranks = 2}, [](ShmGroup& group) {
    Bytes data(64);
    if (group.rank() == 0) {
      expect_refusal([&] { all_gather(group, Bytes(128).data(), data.data(), 64); },
                     Code::kCollectiveFailed,
                     {"rank 0/2, all_gather", "rank 1"});
    } else {
      expect_refusal([&] { all_reduce(group, data.data(), 16, DType::kF32, Reduction::kMin); },
                     Code::kCollectiveFailed,
                     {"rank 1/2, all_reduce", "rank 0"});
    }
    expect_refusal([&] { barrier(group); }, Code::kCollectiveFailed, {"barrier"}); // unusable from then on
  });
}

TEST(ShmCollectivesOfProcesses, DifferentSizesAreRefusedWithBoth) {
  const auto memory = make_shm({.ranks = 2});
  ShmGroup first(memory, 0, kShmTimeout);
  ShmGroup second(memory, 1, kShmTimeout);
  first.meet();
  second.meet();
  second.begin({.collective = Collective::kAllGather, .bytes = 64});
  second.post();
  expect_refusal([&] { all_gather(first, Bytes(256).data(), Bytes(128).data(), 128); },
                 Code::kCollectiveFailed,
                 {"this rank is at all_gather of 128 bytes", "rank 1 at all_gather of 64 bytes"});
  expect_refusal([&] { barrier(second); }, Code::kCollectiveFailed, {"rank 0 saw that rank 1 made another call"});
}

/// Two ranks that gather as many bytes, each for a purpose of its own.
void expect_both_named(const std::string& first_purpose, const std::string& second_purpose) {
  const auto memory = make_shm({.ranks = 2});
  ShmGroup first(memory, 0, kShmTimeout);
  ShmGroup second(memory, 1, kShmTimeout);
  first.meet();
  second.meet();
  second.set_purpose(second_purpose);
  second.begin({.collective = Collective::kAllGather, .bytes = 64});
  second.post();
  first.set_purpose(first_purpose);
  const std::string places = concat(
      "at ",
      to_string({.collective = Collective::kAllGather, .bytes = 64, .purpose = CallPurpose::of(first_purpose)}),
      ", rank 1 at ",
      to_string({.collective = Collective::kAllGather, .bytes = 64, .purpose = CallPurpose::of(second_purpose)}));
  expect_refusal([&] { all_gather(first, Bytes(128).data(), Bytes(64).data(), 64); },
                 Code::kCollectiveFailed,
                 {concat("this rank is ", places)});
  expect_refusal([&] { barrier(second); },
                 Code::kCollectiveFailed,
                 {concat("rank 0 saw that rank 1 made another call: rank 0 is ", places)});
}

TEST(ShmCollectivesOfProcesses, EqualCallsForOtherPurposesAreRefusedWithBoth) {
  expect_both_named("unit layers.0", "unit layers.1");
  expect_both_named("agree \"data\"", "");
  EXPECT_EQ(to_string({.collective = Collective::kAllGather, .bytes = 4, .purpose = CallPurpose::of("unit layers.0")}),
            "all_gather of 4 bytes for unit layers.0");
}

TEST(ShmCollectivesOfProcesses, PurposesAreComparedWholeAlsoWhereMessagesShowTheirEndOnly) {
  const std::string end = std::string(100, 'x') + ".mlp";
  EXPECT_EQ(to_string({.bytes = 4, .purpose = CallPurpose::of("unit a" + end)}),
            "no collective of 4 bytes for ..." + end.substr(end.size() - 60));
  expect_both_named("unit a" + end, "unit b" + end);
}

TEST(ShmCollectivesOfProcesses, APurposeIsThatOfOneCall) {
  on_shm_threads({.ranks = 2, .piece_bytes = 512}, [](ShmGroup& group) {
    group.set_purpose("unit layers.0");
    barrier(group);
    if (group.rank() == 0) { // what a rank did before leaves nothing behind
      group.set_purpose("");
    }
    barrier(group);
  });
}

} // namespace
} // namespace tieshard::testing
