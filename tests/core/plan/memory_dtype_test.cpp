#include "tieshard/core/plan/memory_dtype.h"

#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

using testing::as_bf16;
using testing::CheckpointFixture;
using testing::counting;

std::vector<DType> dtypes(const std::string& config, std::optional<DType> asked) {
  CheckpointFixture fixture(config);
  fixture.write({as_bf16(counting("embed", {2, 2})),
                 counting("norm", {2}),
                 {.name = "quantised", .dtype = DType::kF8E4M3, .shape = {1}, .bytes = {std::byte{0}}}});
  const Checkpoint checkpoint = fixture.open();
  ParameterTable table = {{.fqn = "embed", .shape = {2, 2}, .identity = 0},
                          {.fqn = "head", .shape = {2, 2}, .identity = 0},
                          {.fqn = "norm", .shape = {2}, .identity = 1},
                          {.fqn = "quantised", .shape = {1}, .identity = 2},
                          {.fqn = "absent", .shape = {1}, .identity = 3}};
  set_memory_dtypes(table, checkpoint, TieRegistry::of(table), asked);
  std::vector<DType> result;
  for (const ParameterInfo& parameter : table) {
    result.push_back(parameter.dtype);
  }
  return result;
}

TEST(MemoryDtype, IsThatOfTheFileUnderEveryName) {
  EXPECT_EQ(dtypes("{}", std::nullopt),
            (std::vector{DType::kBF16, DType::kBF16, DType::kF32, DType::kBF16, DType::kBF16}));
}

TEST(MemoryDtype, IsThatOfTheConfigWhereTheFileHasNoneToTrainIn) {
  EXPECT_EQ(dtypes(R"({"dtype": "float32"})", std::nullopt),
            (std::vector{DType::kBF16, DType::kBF16, DType::kF32, DType::kF32, DType::kF32}));
  EXPECT_EQ(dtypes(R"({"dtype": "float8_e4m3fn"})", std::nullopt)[3], DType::kBF16);
}

TEST(MemoryDtype, IsWhatTheCallerAsksFor) {
  EXPECT_EQ(dtypes("{}", DType::kF16), std::vector(5, DType::kF16));
}

} // namespace
} // namespace tieshard
