#include "tieshard/core/base/process_memory.h"

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

namespace tieshard {
namespace {

TEST(ProcessMemory, CountsPagesThatWereTouched) {
  const std::uint64_t before = resident_bytes();
  const std::vector<std::byte> touched(std::size_t{64} << 20U, std::byte{1});
  EXPECT_GE(resident_bytes(), before + touched.size() / 2);
  EXPECT_GE(peak_resident_bytes(), resident_bytes());
}

} // namespace
} // namespace tieshard
