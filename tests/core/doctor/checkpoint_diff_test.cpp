#include "tieshard/core/doctor/checkpoint_diff.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

using testing::as_bf16;
using testing::bytes_of;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::FixtureTensor;
using ::testing::IsEmpty;
using testing::tied_config;
using testing::tiny_llama_tensors;

CheckpointDiff compare(const CheckpointFixture& first,
                       const CheckpointFixture& second,
                       std::uint64_t buffer = 64,
                       int threads = 2) {
  return compare_checkpoints(
      resolve_model(first.path()), resolve_model(second.path()), {.threads = threads, .buffer_bytes = buffer});
}

FixtureTensor floats(const std::string& name, const Shape& shape, const std::vector<float>& values) {
  return {.name = name, .dtype = DType::kF32, .shape = shape, .bytes = bytes_of(values)};
}

TEST(CheckpointDiff, OrderAndFilesAreNoDifference) {
  CheckpointFixture first;
  CheckpointFixture second;
  first.write({counting("a", {300, 7}), counting("b", {0, 3}), counting("c", {})});
  second.write({counting("c", {}), counting("b", {0, 3}), counting("a", {300, 7})});
  const CheckpointDiff diff = compare(first, second);
  EXPECT_TRUE(diff.same());
  EXPECT_EQ(diff.tensors, 3U);
  EXPECT_EQ(diff.equal, 3U);
  EXPECT_EQ(diff.bytes, 300U * 7 * 4 + 4);
}

TEST(CheckpointDiff, CountsWhatDiffersAcrossPieces) {
  std::vector<float> values(1000);
  CheckpointFixture first;
  first.write({floats("a", {10, 100}, values), floats("b", {2}, {1, 2})});
  values[37] = 0.5F;
  values[990] = -2.0F;
  CheckpointFixture second;
  second.write({floats("a", {10, 100}, values), floats("b", {2}, {1, 2})});
  for (const std::uint64_t buffer : {8, 64, 1 << 20}) {
    const CheckpointDiff diff = compare(first, second, buffer, 3);
    ASSERT_EQ(diff.differences.size(), 1U);
    ASSERT_TRUE(diff.differences[0].elements);
    EXPECT_EQ(diff.differences[0].name, "a");
    EXPECT_EQ(diff.differences[0].elements->first, 37U);
    EXPECT_EQ(diff.differences[0].elements->count, 2U);
    EXPECT_EQ(diff.differences[0].elements->largest, 2.0);
  }
}

TEST(CheckpointDiff, AnotherDtypeOfTheSameValuesIsADifferenceOfDtypeAlone) {
  CheckpointFixture first;
  CheckpointFixture second;
  first.write({counting("a", {4, 4}), floats("b", {2}, {1.0F, 1.001F})});
  second.write(
      {as_bf16(counting("a", {4, 4})),
       {.name = "b", .dtype = DType::kBF16, .shape = {2}, .bytes = bytes_of<std::uint16_t>({0x3F80, 0x3F80})}});
  const CheckpointDiff diff = compare(first, second);
  ASSERT_EQ(diff.differences.size(), 2U);
  EXPECT_TRUE(diff.differences[0].same_values);
  EXPECT_EQ(diff.differences[0].first, "F32 [4, 4]");
  EXPECT_EQ(diff.differences[0].second, "BF16 [4, 4]");
  EXPECT_FALSE(diff.differences[1].same_values);
  EXPECT_EQ(diff.differences[1].elements->first, 1U);
  EXPECT_NEAR(*diff.differences[1].elements->largest, 0.001, 1e-6);
}

TEST(CheckpointDiff, NamesShapesAndWhatIsAbsent) {
  CheckpointFixture first;
  CheckpointFixture second;
  first.write({counting("a", {4}), counting("only", {1}), counting("shape", {2, 3})});
  second.write({counting("a", {4}),
                counting("shape", {3, 2}),
                {.name = "z", .dtype = DType::kI64, .shape = {1}, .bytes = bytes_of<std::int64_t>({1})}});
  const CheckpointDiff diff = compare(first, second);
  ASSERT_EQ(diff.differences.size(), 3U);
  EXPECT_EQ(diff.differences[0].second, "absent");
  EXPECT_EQ(diff.differences[1].second, "F32 [3, 2]");
  EXPECT_FALSE(diff.differences[1].elements);
  EXPECT_EQ(diff.differences[2].first, "absent");
}

TEST(CheckpointDiff, BitsDecideWithinADtypeAndNanEqualsNanAcrossThem) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CheckpointFixture first;
  CheckpointFixture second;
  CheckpointFixture third;
  first.write({floats("a", {3}, {nan, 0.0F, 1.0F})});
  second.write({floats("a", {3}, {nan, -0.0F, 1.0F})});
  third.write(
      {{.name = "a", .dtype = DType::kBF16, .shape = {3}, .bytes = bytes_of<std::uint16_t>({0x7FC1, 0x8000, 0x3F80})}});
  EXPECT_TRUE(compare(first, first).same());
  EXPECT_EQ(compare(first, second).differences.at(0).elements->count, 1U);
  EXPECT_EQ(compare(first, second).differences.at(0).elements->zero_signs, 1U);
  EXPECT_EQ(compare(first, second).differences.at(0).elements->largest, std::nullopt);
  EXPECT_TRUE(compare(first, third).differences.at(0).same_values);
}

TEST(CheckpointDiff, SaysWhatKindOfDifferenceItIs) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto integers = [](std::int64_t a, std::int64_t b) {
    return FixtureTensor{.name = "n", .dtype = DType::kI64, .shape = {2}, .bytes = bytes_of<std::int64_t>({a, b})};
  };
  CheckpointFixture first;
  CheckpointFixture second;
  first.write({floats("a", {4}, {1.0F, nan, 2.0F, 3.0F}), integers(1, std::numeric_limits<std::int64_t>::min())});
  second.write({floats("a", {4}, {1.5F, -nan, inf, 3.0F}), integers(1, std::numeric_limits<std::int64_t>::max())});
  const auto differences = compare(first, second).differences;
  EXPECT_EQ(differences.at(0).elements->count, 3U);
  EXPECT_EQ(differences.at(0).elements->nan_bits, 1U);
  EXPECT_EQ(differences.at(0).elements->not_finite, 1U);
  EXPECT_EQ(differences.at(0).elements->largest, 0.5);
  EXPECT_EQ(differences.at(1).elements->largest, 18446744073709551615.0); // no overflow of 64 bits
}

TEST(CheckpointDiff, ATiedWeightMayBeStoredOnceOrTwice) {
  CheckpointFixture once(tied_config());
  once.write(tiny_llama_tensors());
  std::vector<FixtureTensor> tensors = tiny_llama_tensors();
  for (const FixtureTensor& tensor : tiny_llama_tensors()) {
    if (tensor.name == "model.embed_tokens.weight") {
      tensors.push_back(tensor);
      tensors.back().name = "lm_head.weight";
    }
  }
  CheckpointFixture twice(tied_config());
  twice.write(tensors);
  const CheckpointDiff diff = compare(once, twice);
  EXPECT_TRUE(diff.same());
  EXPECT_THAT(diff.tied, ElementsAre("lm_head.weight"));
  EXPECT_THAT(compare(twice, twice).tied, IsEmpty());
}

TEST(CheckpointDiff, WithoutValuesOnlyHeadersCount) {
  CheckpointFixture first;
  CheckpointFixture second;
  first.write({floats("a", {1}, {1})});
  second.write({floats("a", {1}, {2})});
  EXPECT_TRUE(compare_checkpoints(resolve_model(first.path()), resolve_model(second.path()), {.values = false}).same());
}

} // namespace
} // namespace tieshard
