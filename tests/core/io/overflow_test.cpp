#include "tieshard/core/io/overflow.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/io/convert.h"

namespace tieshard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t overflowed(const std::vector<float>& values, DType to) {
  const auto* const source = reinterpret_cast<const std::byte*>(values.data());
  std::vector<std::byte> target(values.size() * static_cast<std::size_t>(bits(to)) / 8);
  convert(source, DType::kF32, target.data(), to, values.size());
  return count_overflowed(source, DType::kF32, target.data(), to, values.size());
}

TEST(CountOverflowed, CountsFiniteValuesThatAreTooLarge) {
  EXPECT_EQ(overflowed({1.0F, 65504.0F, -65504.0F}, DType::kF16), 0);
  EXPECT_EQ(overflowed({65520.0F, 1.0F, -1e6F, 3e38F}, DType::kF16), 3);
  EXPECT_EQ(overflowed({3.4e38F, 3e38F}, DType::kBF16), 1);
  EXPECT_EQ(overflowed(std::vector<float>(1000, 1e5F), DType::kF16), 1000);
}

TEST(CountOverflowed, LeavesWhatWasNotFiniteBeforeOut) {
  EXPECT_EQ(overflowed({kInfinity, -kInfinity, std::nanf(""), 1e5F}, DType::kF16), 1);
}

TEST(CountOverflowed, IsNoneInAWiderDtypeOrTheSame) {
  EXPECT_EQ(overflowed({kInfinity, 3e38F}, DType::kF64), 0);
  EXPECT_EQ(overflowed({kInfinity, 3e38F}, DType::kF32), 0);
}

TEST(OverflowFinding, NamesTensorsWithTheirCounts) {
  const Diagnostic finding = overflow_finding(Level::kWarning, {{"a.weight", 3}, {"b.weight", 4}}, "out");
  EXPECT_EQ(finding.code, Code::kNotFinite);
  EXPECT_THAT(finding.where, ::testing::HasSubstr("out, a.weight (3), b.weight (4)"));
  EXPECT_THAT(finding.why, ::testing::HasSubstr("7 that become infinite"));
}

} // namespace
} // namespace tieshard
