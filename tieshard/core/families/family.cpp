#include "tieshard/core/families/family.h"

#include <algorithm>
#include <array>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

auto known_families() {
#define TIESHARD_ADDRESS_OF_FAMILY(name) &name##_family(),
  return std::to_array<const Family*>({TIESHARD_FAMILIES(TIESHARD_ADDRESS_OF_FAMILY)});
#undef TIESHARD_ADDRESS_OF_FAMILY
}

} // namespace

const Family* find_family(const HfConfig& config) {
  const auto families = known_families();
  const auto* const found =
      std::ranges::find_if(families, [&config](const Family* family) { return family->matches(config); });
  return found == families.end() ? nullptr : *found;
}

const Family& require_family(const HfConfig& config) {
  if (const Family* family = find_family(config)) {
    return *family;
  }
  std::string known;
  for (const Family* family : known_families()) {
    known += concat(known.empty() ? "" : ", ", family->name());
  }
  throw InputError(
      {.code = Code::kUnknownArchitecture,
       .what = "the model family is not known",
       .where = config.where(),
       .why = concat("model_type is \"",
                     config.model_type(),
                     "\", architectures begins with \"",
                     config.architecture(),
                     "\"; known: ",
                     known),
       .fix = "use a checkpoint of a known family, add this one as docs/new_model.md shows, or build the module "
              "yourself and load it by name"});
}

} // namespace tieshard
