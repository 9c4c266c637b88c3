#include "tieshard/core/base/dtype.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace tieshard {
namespace {

// The dtypes of the safetensors format with their bits, written down here a second time on purpose.
const std::map<std::string, int> kBits = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

TEST(DType, KnowsEveryDtypeOfTheFormatAndItsSize) {
  ASSERT_EQ(kBits.size(), 22U);
  for (const auto& [text, expected_bits] : kBits) {
    const std::optional<DType> dtype = dtype_from_name(text);
    ASSERT_TRUE(dtype) << text;
    EXPECT_EQ(name(*dtype), text);
    EXPECT_EQ(bits(*dtype), expected_bits) << text;
  }
}

TEST(DType, RefusesSpellingsThatTheFormatDoesNotHave) {
  for (const char* text : {"", "F24", "f32", "BF16 ", "bfloat16", "F8"}) {
    EXPECT_FALSE(dtype_from_name(text)) << text;
  }
}

TEST(DType, ReadsTheSpellingsOfConfigsAndFlags) {
  for (const char* text : {"bfloat16", "torch.bfloat16", "bf16"}) {
    EXPECT_EQ(dtype_from_torch_name(text), DType::kBF16) << text;
  }
  for (const char* text : {"float32", "torch.float32", "fp32", "float", "torch.float"}) {
    EXPECT_EQ(dtype_from_torch_name(text), DType::kF32) << text;
  }
  EXPECT_EQ(dtype_from_torch_name("torch.half"), DType::kF16);
  EXPECT_EQ(dtype_from_torch_name("float64"), DType::kF64);
  EXPECT_EQ(dtype_from_torch_name("float8_e4m3fn"), DType::kF8E4M3);
  for (const char* text : {"", "torch.", "int8", "BF16", "torch.torch.float32", "float33"}) {
    EXPECT_FALSE(dtype_from_torch_name(text)) << text;
  }
}

TEST(DType, OnlyTheFourWideFloatsCanBeTrained) {
  int wide = 0;
  for (const auto& [text, expected_bits] : kBits) {
    const bool expected = text == "F16" || text == "BF16" || text == "F32" || text == "F64";
    EXPECT_EQ(is_wide_float(*dtype_from_name(text)), expected) << text;
    wide += expected ? 1 : 0;
  }
  EXPECT_EQ(wide, 4);
}

TEST(DType, HasTorchsOwnNameForConfigJson) {
  EXPECT_EQ(torch_name(DType::kBF16), "bfloat16");
  EXPECT_EQ(torch_name(DType::kF32), "float32");
  EXPECT_EQ(torch_name(DType::kF64), "float64");
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2}) {
    EXPECT_EQ(dtype_from_torch_name(torch_name(dtype)), dtype);
  }
}

} // namespace
} // namespace tieshard
