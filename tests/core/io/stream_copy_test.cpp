#include "tieshard/core/io/stream_copy.h"

#include <vector>

#include <gtest/gtest.h>

namespace tieshard {
namespace {

TEST(StreamCopy, CopiesWhatItIsAskedToAndNothingElse) {
  std::vector<std::byte> source(5000);
  for (std::size_t i = 0; i < source.size(); ++i) {
    source[i] = static_cast<std::byte>(i * 31 + i / 256);
  }
  for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 1000, 4096}) {
    for (const std::size_t from : {0, 1, 7, 33}) {
      for (std::size_t to = 0; to < 70; to += 3) {
        std::vector<std::byte> target(bytes + 200, std::byte{0xEE});
        stream_copy(target.data() + to, source.data() + from, bytes);
        for (std::size_t i = 0; i < target.size(); ++i) {
          const bool copied = i >= to && i < to + bytes;
          ASSERT_EQ(target[i], copied ? source[from + i - to] : std::byte{0xEE}) << bytes << " " << from << " " << to;
        }
      }
    }
  }
}

} // namespace
} // namespace tieshard
