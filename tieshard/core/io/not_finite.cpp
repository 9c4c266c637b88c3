#include "tieshard/core/io/not_finite.h"

#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

constexpr std::size_t kNamedPlaces = 8;

} // namespace

Diagnostic not_finite_finding(const std::vector<NotFinite>& found) {
  std::vector<std::string> names;
  std::string places;
  for (const NotFinite& one : found) {
    if (names.size() < kNamedPlaces) {
      places += concat(places.empty() ? "" : ", ",
                       one.nan ? "NaN" : "infinity",
                       " at ",
                       to_string(one.index),
                       " of ",
                       format_name(one.fqn));
    }
    names.push_back(one.fqn);
  }
  return {.level = Level::kWarning,
          .code = Code::kNotFinite,
          .what = "a stored value is NaN or infinite",
          .where = format_names(names),
          .why = concat("expected finite values, got others in ",
                        found.size(),
                        found.size() == 1 ? " parameter: " : " parameters: ",
                        places,
                        found.size() > kNamedPlaces ? ", ..." : ""),
          .fix = "load a checkpoint of before training diverged; no output of this one will be a number"};
}

} // namespace tieshard
