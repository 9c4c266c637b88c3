#include "tieshard/core/plan/init_rule.h"

#include "tieshard/core/base/error.h"

namespace tieshard {

InitRule InitRule::parse(std::string_view text) {
  if (text == "zeros") {
    return {};
  }
  if (text == "ones") {
    return {.a = 1.0};
  }
  throw InputError({.code = Code::kBadFlag,
                    .what = "a command line flag has a value that cannot be used",
                    .where = "--init",
                    .why = concat("expected a rule such as normal(0.02), got ", text),
                    .fix = "write normal(std), normal(mean, std), uniform(low, high), constant(x), zeros or ones"});
}

std::string InitRule::to_string() const {
  switch (kind) {
    case Kind::kConstant:
      return concat("constant(", a, ")");
    case Kind::kNormal:
      return concat("normal(", a, ", ", b, ")");
    case Kind::kUniform:
      return concat("uniform(", a, ", ", b, ")");
  }
  return "unknown";
}

} // namespace tieshard
