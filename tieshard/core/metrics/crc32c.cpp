#include "tieshard/core/metrics/crc32c.h"

#include <array>

namespace tieshard {
namespace {

constexpr std::uint32_t kReflectedPolynomial = 0x82F63B78U;

constexpr std::array<std::uint32_t, 256> remainders() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1U) ^ ((remainder & 1U) != 0 ? kReflectedPolynomial : 0U);
    }
    table[byte] = remainder;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kRemainders = remainders();

} // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t value = ~0U;
  for (const char byte : bytes) {
    value = (value >> 8U) ^ kRemainders[(value ^ static_cast<unsigned char>(byte)) & 0xFFU];
  }
  return ~value;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t value = crc32c(bytes);
  return ((value >> 15U) | (value << 17U)) + 0xA282EAD8U;
}

} // namespace tieshard
