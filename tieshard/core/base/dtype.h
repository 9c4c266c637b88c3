// tieshard/core/base/dtype.h
//
// The element types that a safetensors file can hold.
//
// Flow:   every room -> [this]
// Source: the safetensors format text and its reference reader (safetensors 0.8).

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tieshard {

/// One element type of the safetensors format. Complex, integer and sub-byte types can be inspected
/// and carried; the floats of 8 bits and more are converted into the four wide ones (io/convert.h).
enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// The format's spelling, e.g. "BF16" or "F8_E4M3".
std::string_view name(DType dtype);

/// The inverse of name(); nothing for a spelling the format does not know.
std::optional<DType> dtype_from_name(std::string_view text);

/// A config.json or flag spelling: "bfloat16", "torch.bfloat16", "bf16", "float32", "fp32", ... (floating types only).
std::optional<DType> dtype_from_torch_name(std::string_view text);

/// The spelling of config.json: "bfloat16". Pre: a floating type of whole bytes.
std::string_view torch_name(DType dtype);

/// Bits of one element: 4 and 6 for the packed types, otherwise a multiple of 8.
int bits(DType dtype);

/// True for F16, BF16, F32 and F64: the types that a parameter can be trained in.
bool is_wide_float(DType dtype);

/// True for the floats of one element a byte: F8_E4M3, F8_E5M2, their FNUZ variants and F8_E8M0.
bool is_float8(DType dtype);

/// True for every dtype that a stored parameter may have: a wide float, or an 8-bit one that is converted to one.
bool is_loadable_float(DType dtype);

} // namespace tieshard
