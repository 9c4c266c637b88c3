#include "tieshard/core/adapters/transposed.h"

#include <cstddef>

namespace tieshard {

std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  std::vector<float> turned(values.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      turned[static_cast<std::size_t>(column * rows + row)] = values[static_cast<std::size_t>(row * columns + column)];
    }
  }
  return turned;
}

} // namespace tieshard
