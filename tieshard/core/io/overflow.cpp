#include "tieshard/core/io/overflow.h"

#include <vector>

#include "tieshard/core/base/units.h"
#include "tieshard/core/io/finite.h"

namespace tieshard {

std::int64_t count_overflowed(
    const std::byte* source, DType from, const std::byte* target, DType to, std::size_t count) {
  if (from == to || !is_wide_float(from) || !is_wide_float(to)) {
    return 0;
  }
  const auto source_bytes = static_cast<std::size_t>(bits(from)) / 8;
  const auto target_bytes = static_cast<std::size_t>(bits(to)) / 8;
  std::int64_t overflowed = 0;
  for (std::size_t at = 0; at < count; ++at) {
    at += first_not_finite(target + at * target_bytes, to, count - at);
    if (at < count && first_not_finite(source + at * source_bytes, from, 1) == 1) {
      ++overflowed;
    }
  }
  return overflowed;
}

Diagnostic overflow_finding(Level level,
                            const std::map<std::string, std::int64_t>& overflowed,
                            const std::string& where) {
  std::int64_t values = 0;
  std::vector<std::string> names;
  for (const auto& [name, count] : overflowed) {
    values += count;
    names.push_back(concat(name, " (", count, ")"));
  }
  return {.level = level,
          .code = Code::kNotFinite,
          .what = "values are too large for the dtype of an export",
          .where = concat(where, ", ", format_names(names)),
          .why = concat("expected finite values to stay finite, got ", values, " that become infinite"),
          .fix = "export in bfloat16 or float32"};
}

} // namespace tieshard
