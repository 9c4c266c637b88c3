#include "tieshard/runtime/tensors/torch_dtype.h"

#include <array>

#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

constexpr std::array kWithoutTorch{DType::kF4, DType::kF6E2M3, DType::kF6E3M2, DType::kF8E8M0};

std::vector<DType> every_dtype() {
  std::vector<DType> all;
  for (int value = 0; value <= static_cast<int>(DType::kU64); ++value) {
    all.push_back(static_cast<DType>(value));
  }
  return all;
}

TEST(TorchDtype, EveryOtherDtypeComesBackAsItselfWithTheSameSize) {
  int paired = 0;
  for (const DType dtype : every_dtype()) {
    if (std::ranges::find(kWithoutTorch, dtype) != kWithoutTorch.end()) {
      continue;
    }
    const c10::ScalarType type = to_torch(dtype);
    EXPECT_EQ(from_torch(type), dtype) << name(dtype);
    EXPECT_EQ(static_cast<int>(c10::elementSize(type)) * 8, bits(dtype)) << name(dtype);
    ++paired;
  }
  EXPECT_EQ(paired, 18);
}

TEST(TorchDtype, AFormatTypeThatTorchDoesNotComputeWithIsRefusedByName) {
  for (const DType dtype : kWithoutTorch) {
    expect_refusal([&] { to_torch(dtype); }, Code::kNotConvertible, {std::string(name(dtype))});
  }
}

TEST(TorchDtype, ATorchTypeThatTheFormatDoesNotHaveIsRefusedByName) {
  expect_refusal([] { from_torch(c10::ScalarType::QInt8); }, Code::kNotConvertible, {"QInt8"});
  expect_refusal([] { from_torch(c10::ScalarType::ComplexDouble); }, Code::kNotConvertible, {"ComplexDouble"});
}

TEST(TorchDtype, FloatsOfOneSizeAreNotMixedUp) {
  EXPECT_EQ(to_torch(DType::kF8E4M3), c10::ScalarType::Float8_e4m3fn);
  EXPECT_EQ(to_torch(DType::kF8E4M3Fnuz), c10::ScalarType::Float8_e4m3fnuz);
  EXPECT_EQ(to_torch(DType::kF8E5M2), c10::ScalarType::Float8_e5m2);
  EXPECT_EQ(to_torch(DType::kF8E5M2Fnuz), c10::ScalarType::Float8_e5m2fnuz);
  EXPECT_EQ(to_torch(DType::kBF16), c10::ScalarType::BFloat16);
  EXPECT_EQ(to_torch(DType::kF16), c10::ScalarType::Half);
}

} // namespace
} // namespace tieshard::testing
