#include "tieshard/core/base/dtype.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

namespace tieshard {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr DTypeRow kTable[] = {
    {DType::kBool, "BOOL", 8},
    {DType::kF4, "F4", 4},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},
    {DType::kF32, "F32", 32},
    {DType::kC64, "C64", 64},
    {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},
};

/// Rows are found by index, so they have to stand in the order of the enumerators.
constexpr bool rows_in_order() {
  for (std::size_t i = 0; i < std::size(kTable); ++i) {
    if (static_cast<std::size_t>(kTable[i].dtype) != i) {
      return false;
    }
  }
  return std::size(kTable) == static_cast<std::size_t>(DType::kU64) + 1;
}
static_assert(rows_in_order());

const DTypeRow& row(DType dtype) {
  return kTable[static_cast<std::size_t>(dtype)];
}

struct TorchName {
  std::string_view name;
  DType dtype;
};

/// Of each dtype torch's own name first.
constexpr TorchName kTorchNames[] = {
    {"float32", DType::kF32},
    {"float", DType::kF32},
    {"fp32", DType::kF32},
    {"f32", DType::kF32},
    {"bfloat16", DType::kBF16},
    {"bf16", DType::kBF16},
    {"float16", DType::kF16},
    {"half", DType::kF16},
    {"fp16", DType::kF16},
    {"f16", DType::kF16},
    {"float64", DType::kF64},
    {"double", DType::kF64},
    {"fp64", DType::kF64},
    {"f64", DType::kF64},
    {"float8_e4m3fn", DType::kF8E4M3},
    {"float8_e5m2", DType::kF8E5M2},
    {"float8_e8m0fnu", DType::kF8E8M0},
    {"float8_e4m3fnuz", DType::kF8E4M3Fnuz},
    {"float8_e5m2fnuz", DType::kF8E5M2Fnuz},
};

} // namespace

std::string_view name(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view text) {
  const auto* found = std::ranges::find(kTable, text, &DTypeRow::name);
  return found == std::end(kTable) ? std::nullopt : std::optional(found->dtype);
}

std::optional<DType> dtype_from_torch_name(std::string_view text) {
  constexpr std::string_view kPrefix = "torch.";
  if (text.starts_with(kPrefix)) {
    text.remove_prefix(kPrefix.size());
  }
  const auto* found = std::ranges::find(kTorchNames, text, &TorchName::name);
  return found == std::end(kTorchNames) ? std::nullopt : std::optional(found->dtype);
}

std::string_view torch_name(DType dtype) {
  return std::ranges::find(kTorchNames, dtype, &TorchName::dtype)->name;
}

int bits(DType dtype) {
  return row(dtype).bits;
}

bool is_wide_float(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

bool is_float8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E8M0 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

bool is_loadable_float(DType dtype) {
  return is_wide_float(dtype) || is_float8(dtype);
}

} // namespace tieshard
