// A rank that writes three times as fast as the other reads. Built with both waits of the algorithm, where it must
// hold, and with one of them taken out, where ThreadSanitizer has to report a data race.

#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tieshard/core/shm/shm_group.h"

#include "tests/support/shm_ranks.h"

namespace tieshard::testing {
namespace {

using std::chrono::milliseconds;

TEST(TheWaits, KeepAFastWriterFromASlowReader) {
  constexpr std::uint32_t kSteps = 3 * kRingPieces;
  on_shm_threads({.ranks = 2, .piece_bytes = 512}, [](ShmGroup& group) {
    group.begin({.collective = Collective::kBroadcast, .bytes = kSteps * 512});
    std::vector<std::byte> data(512);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      std::byte* mine = group.piece_to_write();
      if (group.rank() == 0) {
        std::this_thread::sleep_for(milliseconds(3));
        std::memcpy(mine, std::vector<std::byte>(512, std::byte(step)).data(), group.piece_bytes());
      }
      group.post();
      if (group.rank() == 1) {
        const std::byte* piece = group.piece_of(0);
        std::this_thread::sleep_for(milliseconds(10));
        std::memcpy(data.data(), piece, group.piece_bytes());
        EXPECT_EQ(data, std::vector<std::byte>(512, std::byte(step)));
      }
      group.release();
    }
  });
}

} // namespace
} // namespace tieshard::testing
