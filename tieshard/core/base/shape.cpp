#include "tieshard/core/base/shape.h"

#include <algorithm>

#include "tieshard/core/base/error.h"

namespace tieshard {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

std::optional<std::int64_t> checked_numel(const Shape& shape) {
  std::int64_t strides = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(strides, std::max<std::int64_t>(size, 1), &strides)) {
      return std::nullopt;
    }
    empty = empty || size == 0;
  }
  return empty ? 0 : strides;
}

std::int64_t numel(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    product *= size;
  }
  return product;
}

std::optional<std::uint64_t> checked_bytes(const Shape& shape, DType dtype) {
  const std::optional<std::int64_t> count = checked_numel(shape);
  if (!count) {
    return std::nullopt;
  }
  // Eight elements of any dtype fill whole bytes, so counting in eights keeps the product of bits small.
  const std::int64_t rest_bits = *count % 8 * bits(dtype);
  std::int64_t bytes = 0;
  if (rest_bits % 8 != 0 || __builtin_mul_overflow(*count / 8, std::int64_t{bits(dtype)}, &bytes) ||
      __builtin_add_overflow(bytes, rest_bits / 8, &bytes)) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(bytes);
}

} // namespace tieshard
