#include "tieshard/core/families/family.h"

#include <algorithm>
#include <array>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/albert.h"
#include "tieshard/core/families/gemma.h"
#include "tieshard/core/families/gpt2.h"
#include "tieshard/core/families/gpt_oss.h"
#include "tieshard/core/families/llama.h"
#include "tieshard/core/families/t5.h"

namespace tieshard {
namespace {

std::array<const Family*, 6> known_families() {
  return {&llama_family(), &gemma_family(), &t5_family(), &albert_family(), &gpt2_family(), &gpt_oss_family()};
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
  throw InputError({.code = Code::kUnknownArchitecture,
                    .what = "the model family is not known",
                    .where = config.where(),
                    .why = concat("model_type is \"",
                                  config.model_type(),
                                  "\", architectures begins with \"",
                                  config.architecture(),
                                  "\"; known: ",
                                  known),
                    .fix = "use a checkpoint of a known family, or build the module yourself and load it by name"});
}

} // namespace tieshard
