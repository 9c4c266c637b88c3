#include "tieshard/core/plan/unused.h"

#include <limits>

#include "tieshard/core/base/units.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/plan/quantization.h"
#include "tieshard/core/plan/unloadable.h"

namespace tieshard {
namespace {

/// The largest finite value of a wide float.
double largest_finite(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 65504.0;
    case DType::kBF16:
      return 0x1.fep127;
    case DType::kF32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

/// An initial value that the parameter's dtype cannot hold would be infinite.
void require_finite(const ShardedParameter& parameter, const InitRule& rule) {
  if (!(rule.bound() <= largest_finite(parameter.dtype))) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "an initial value is larger than its dtype can hold",
                      .where = concat("--init ", parameter.fqn, "=", rule.to_string()),
                      .why = concat("expected values up to ",
                                    largest_finite(parameter.dtype),
                                    " (",
                                    name(parameter.dtype),
                                    "), got up to ",
                                    rule.bound()),
                      .fix = "ask for smaller values or a wider --param-dtype"});
  }
}

/// Tensors of one kind.
struct Listed {
  std::vector<std::string> names;
  std::uint64_t bytes = 0;

  void add(const StoredTensor& tensor) {
    names.push_back(tensor.name);
    bytes += tensor.bytes;
  }
  std::string where(const Checkpoint& checkpoint) const {
    return concat(checkpoint.directory().string(), ": ", list_names(names));
  }
  std::string why(const Checkpoint& checkpoint) const {
    return concat(
        names.size(), " of ", checkpoint.tensors().size(), " tensors, ", format_bytes(bytes), ", are not read");
  }
};

} // namespace

void list_unused(const Checkpoint& checkpoint,
                 const ShardPlan& plan,
                 const std::vector<bool>& used,
                 WeightSources& sources) {
  const Family* const family = find_family(checkpoint.config());
  Listed buffers;
  Listed scales;
  Listed others;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const StoredTensor& tensor = checkpoint.tensors()[i];
    if (used[i] || plan.find(tensor.name) != nullptr) {
      continue;
    }
    sources.unused.push_back(tensor.name);
    const bool buffer = family != nullptr && family->is_known_buffer(tensor.name);
    (buffer ? buffers : is_activation_scale(tensor.name) ? scales : others).add(tensor);
  }
  if (!others.names.empty()) {
    sources.findings.push_back({.level = Level::kWarning,
                                .code = Code::kUnusedTensor,
                                .what = "a stored tensor is used by no parameter",
                                .where = others.where(checkpoint),
                                .why = others.why(checkpoint),
                                .fix = "check that config.json is the one that these weights were saved with"});
  }
  if (!scales.names.empty()) {
    sources.findings.push_back({.level = Level::kNote,
                                .code = Code::kUnusedTensor,
                                .what = "a quantisation scale of activations is dropped",
                                .where = scales.where(checkpoint),
                                .why = concat(scales.why(checkpoint),
                                              "; the weights do not depend on them, and activations are not quantised"),
                                .fix = "nothing, unless the model is to run with quantised activations"});
  }
  if (!buffers.names.empty()) {
    sources.findings.push_back({.level = Level::kNote,
                                .code = Code::kKnownBuffer,
                                .what = "a stored tensor is a buffer that the model computes itself",
                                .where = buffers.where(checkpoint),
                                .why = buffers.why(checkpoint),
                                .fix = "nothing: the model makes it from config.json"});
  }
}

void list_initialised(const ShardPlan& plan, WeightSources& sources) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < sources.of_parameter.size(); ++i) {
    if (sources.of_parameter[i].values == nullptr) {
      require_finite(plan.parameters()[i], sources.of_parameter[i].init);
      names.push_back(concat(plan.parameters()[i].fqn, " = ", sources.of_parameter[i].init.to_string()));
    }
  }
  if (!names.empty()) {
    sources.findings.push_back(
        {.level = Level::kNote,
         .code = Code::kInitialised,
         .what = "a parameter gets a value that no file holds, as asked",
         .where = list_names(names),
         .why =
             concat(names.size(), " of ", plan.parameters().size(), " parameters are stored under none of their names"),
         .fix = "nothing: it is said so that it is not forgotten"});
  }
}

} // namespace tieshard
