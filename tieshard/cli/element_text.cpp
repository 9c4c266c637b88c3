#include "tieshard/cli/element_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>

#include "tieshard/core/io/convert.h"

namespace tieshard::cli {
namespace {

template <typename Number>
Number load(const std::byte* bytes) {
  Number value{};
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

template <typename Number>
std::string number_text(Number value) {
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

// F16 and BF16 are exact in F32, so that their shortest text is that of the float.
std::string float_text(const std::byte* bytes, DType dtype, FloatText floats) {
  if (dtype == DType::kF64) {
    return number_text(load<double>(bytes));
  }
  std::array<std::byte, sizeof(float)> wide{};
  convert(bytes, dtype, wide.data(), DType::kF32, 1);
  const auto value = load<float>(wide.data());
  return floats == FloatText::kShortest ? number_text(value) : number_text(static_cast<double>(value));
}

std::string hex_text(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte) {
    const auto value = std::to_integer<unsigned>(*byte);
    text += kDigits[value >> 4U];
    text += kDigits[value & 15U];
  }
  return text;
}

std::string element_text(std::span<const std::byte> element, DType dtype, FloatText floats) {
  const std::byte* bytes = element.data();
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      return float_text(bytes, dtype, floats);
    case DType::kBool:
      return load<std::uint8_t>(bytes) != 0 ? "true" : "false";
    case DType::kU8:
      return number_text(load<std::uint8_t>(bytes));
    case DType::kI8:
      return number_text(load<std::int8_t>(bytes));
    case DType::kU16:
      return number_text(load<std::uint16_t>(bytes));
    case DType::kI16:
      return number_text(load<std::int16_t>(bytes));
    case DType::kU32:
      return number_text(load<std::uint32_t>(bytes));
    case DType::kI32:
      return number_text(load<std::int32_t>(bytes));
    case DType::kU64:
      return number_text(load<std::uint64_t>(bytes));
    case DType::kI64:
      return number_text(load<std::int64_t>(bytes));
    default:
      return hex_text(element);
  }
}

} // namespace

std::vector<std::string> element_texts(std::span<const std::byte> bytes,
                                       DType dtype,
                                       std::size_t count,
                                       FloatText floats) {
  const auto width = static_cast<std::size_t>(std::max(8, bits(dtype)) / 8);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count && (i + 1) * width <= bytes.size(); ++i) {
    texts.push_back(element_text(bytes.subspan(i * width, width), dtype, floats));
  }
  return texts;
}

bool shown_as_number(DType dtype) {
  switch (dtype) {
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
    case DType::kF8E5M2:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kF8E4M3Fnuz:
    case DType::kF8E5M2Fnuz:
    case DType::kC64:
      return false;
    default:
      return true;
  }
}

} // namespace tieshard::cli
