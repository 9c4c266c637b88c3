#include "tieshard/runtime/models/make_model.h"

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/families/llama.h"
#include "tieshard/runtime/models/llama.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {

std::shared_ptr<CausalLm> make_model(const HfConfig& config, const TieRegistry& ties, const MakeModelOptions& options) {
  const Family& family = require_family(config);
  if (family.name() != "llama") {
    throw InputError({.code = Code::kUnknownArchitecture,
                      .what = "there is no module for this family yet",
                      .where = config.where(),
                      .why = concat("the family is ", family.name(), "; only llama can be run"),
                      .fix = "load it by name, and use plan and doctor: they need no module"});
  }
  const at::TensorOptions tensors = at::TensorOptions().device(options.device).dtype(options.dtype);
  const bool tied = ties.is_alias("lm_head.weight");
  auto model = std::make_shared<LlamaForCausalLm>(LlamaConfig::from(config), tied, tensors);
  validate_shared_object(*model, ties);
  return model;
}

} // namespace tieshard
