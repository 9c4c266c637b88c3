#include "tieshard/core/io/not_finite.h"

#include "tieshard/core/base/units.h"

namespace tieshard {

Diagnostic not_finite_finding(const std::vector<NotFinite>& found) {
  std::vector<std::string> names;
  std::vector<std::string> values;
  for (const NotFinite& one : found) {
    names.push_back(one.fqn);
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
