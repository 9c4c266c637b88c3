#include "tieshard/core/io/not_finite.h"

#include <cmath>

#include "tieshard/core/base/units.h"
#include "tieshard/core/io/convert.h"

namespace tieshard {

NotFinite not_finite_at(
    const std::string& fqn, const std::byte* element, DType dtype, std::uint64_t at, const Shape& shape) {
  NotFinite found{.fqn = fqn, .index = Shape(shape.size())};
  double value = 0;
  convert(element, dtype, reinterpret_cast<std::byte*>(&value), DType::kF64, 1);
  found.nan = std::isnan(value);
  auto rest = static_cast<std::int64_t>(at);
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    found.index[dim] = rest % shape[dim];
    rest /= shape[dim];
  }
  return found;
}

Diagnostic not_finite_finding(const std::vector<NotFinite>& found) {
  std::vector<std::string> names;
  std::vector<std::string> values;
  for (const NotFinite& one : found) {
    names.push_back(one.place.empty() ? one.fqn : one.place);
    values.push_back(concat(format_name(one.fqn), to_string(one.index), " = ", one.nan ? "NaN" : "infinity"));
  }
  return {.level = Level::kWarning,
          .code = Code::kNotFinite,
          .what = "a stored value is NaN or infinite",
          .where = format_names(names),
          .why = concat("expected finite numbers, got ", format_names(values)),
          .fix = "load an earlier checkpoint; no output of this one will be a number"};
}

} // namespace tieshard
