#include "tieshard/runtime/models/make_model.h"

#include <optional>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/families/gpt2.h"
#include "tieshard/core/families/t5.h"
#include "tieshard/runtime/models/decoder.h"
#include "tieshard/runtime/models/gpt2.h"
#include "tieshard/runtime/models/t5.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

namespace tieshard {

namespace {

std::shared_ptr<LanguageModel> module_of(const Family& family,
                                         const HfConfig& config,
                                         const TieRegistry& ties,
                                         const at::TensorOptions& options) {
  const bool tied_head = ties.is_alias("lm_head.weight");
  if (const std::optional<DecoderConfig> decoder = family.decoder(config)) {
    return std::make_shared<DecoderForCausalLm>(*decoder, tied_head, options);
  }
  if (&family == &gpt2_family()) {
    const Gpt2Config gpt2 = Gpt2Config::from(config);
    if (gpt2.cross_attention) {
      refuse_config(config,
                    "add_cross_attention",
                    "got true, for a decoder that is given an encoder's output; this module is given none",
                    "use a plain language model");
    }
    return std::make_shared<Gpt2ForCausalLm>(gpt2, tied_head, options);
  }
  if (&family == &t5_family()) {
    return std::make_shared<T5ForConditionalGeneration>(T5Config::from(config), tied_head, options);
  }
  throw InputError(
      {.code = Code::kUnknownArchitecture,
       .what = "there is no module for this family",
       .where = config.where(),
       .why = concat("the family is ", family.name(), ", of which only names and shapes are known"),
       .fix = "use plan, load, reshard and doctor, which need no module; docs/new_model.md tells how to add one"});
}

} // namespace

std::shared_ptr<LanguageModel> make_model(const HfConfig& config,
                                          const TieRegistry& ties,
                                          const MakeModelOptions& options) {
  auto model =
      module_of(require_family(config), config, ties, at::TensorOptions().device(options.device).dtype(options.dtype));
  validate_shared_object(*model, ties);
  return model;
}

} // namespace tieshard
