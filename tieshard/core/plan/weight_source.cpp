#include "tieshard/core/plan/weight_source.h"

#include <optional>
#include <set>
#include <utility>

#include "tieshard/core/families/family.h"
#include "tieshard/core/plan/grid_block.h"
#include "tieshard/core/plan/missing.h"
#include "tieshard/core/plan/quantization.h"
#include "tieshard/core/plan/unloadable.h"
#include "tieshard/core/plan/unused.h"

namespace tieshard {
namespace {

constexpr std::int64_t kMxfp4Group = 32;
constexpr std::int64_t kMxfp4GroupBytes = 16;

Shape with_last_two_swapped(Shape shape) {
  if (shape.size() >= 2) {
    std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  }
  return shape;
}

/// Finds the source of one parameter after another and keeps what is wrong with them.
class SourceFinder {
 public:
  SourceFinder(const Checkpoint& checkpoint, const ShardPlan& plan)
      : checkpoint_(checkpoint),
        plan_(plan),
        quantization_(quantization_of(checkpoint.config())),
        grids_(quantization_ && !quantization_->block ? grid_block(checkpoint) : std::nullopt) {}

  /// The source, empty when no file holds the parameter or an offence was noted.
  WeightSource find(const ShardedParameter& parameter) {
    if (const StoredTensor* const stored = plan_.ties().source(checkpoint_, parameter.fqn)) {
      return stored_as(parameter, *stored);
    }
    if (const std::optional<WeightSource> source = find_mxfp4(parameter, parameter.fqn)) {
      return *source;
    }
    for (const std::string& alias : plan_.ties().aliases(parameter.fqn)) {
      if (const std::optional<WeightSource> source = find_mxfp4(parameter, alias)) {
        return *source;
      }
    }
    if (const StoredTensor* const packed = find_packed(parameter.fqn)) {
      not_loadable_.push_back(packed);
      packed_.insert(&parameter);
    }
    return {};
  }

  /// Call for a parameter without a source and an initial value.
  void is_missing(const ShardedParameter& parameter) {
    if (!packed_.contains(&parameter)) {
      missing_.push_back(&parameter);
    }
  }

  /// The offences found, each kind once; a later one may be what an earlier one causes.
  std::vector<Diagnostic> offences() const {
    std::vector<Diagnostic> found;
    if (!not_loadable_.empty()) {
      found.push_back(dtypes_not_loadable(checkpoint_, not_loadable_, quantization_));
    }
    if (!missing_.empty()) {
      found.push_back(parameters_missing(checkpoint_, plan_, missing_));
    }
    if (!without_scale_.empty()) {
      found.push_back(scales_missing(checkpoint_, without_scale_));
    }
    if (!stray_.empty()) {
      found.push_back(scales_stray(checkpoint_, stray_, quantization_.has_value()));
    }
    if (uses_grids_ && !grids_->block()) {
      found.push_back(block_not_known(checkpoint_, *grids_));
    }
    if (!mismatches_.empty()) {
      found.push_back(shapes_differ(checkpoint_, mismatches_));
    }
    return found;
  }

  /// What was taken from shapes. Call when nothing is refused.
  void add_findings(std::vector<Diagnostic>& findings) const {
    if (uses_grids_) {
      findings.push_back(derived_block(checkpoint_, *grids_, *grids_->block()));
    }
  }

  /// Weights that a quantiser packed, of a model whose parameters are those that are stored: nothing misses them.
  /// Called once all sources are known.
  void find_packed_weights(const std::vector<bool>& used) {
    for (std::size_t i = 0; i < used.size(); ++i) {
      const StoredTensor& tensor = checkpoint_.tensors()[i];
      if (!used[i] && is_packed_weight(tensor)) {
        not_loadable_.push_back(&tensor);
      }
    }
  }

  /// Scales of weights that are taken without them. Called once all sources are known.
  void find_stray_scales(const std::vector<bool>& used) {
    for (std::size_t i = 0; i < used.size(); ++i) {
      const StoredTensor& tensor = checkpoint_.tensors()[i];
      if (used[i] || is_activation_scale(tensor.name)) {
        continue;
      }
      const std::optional<std::string> weight = scaled_weight(tensor.name);
      const StoredTensor* const stored = weight ? checkpoint_.find(*weight) : nullptr;
      if (stored != nullptr && (plan_.find(*weight) != nullptr || is_float8(stored->dtype))) {
        stray_.push_back({.scale = &tensor, .weight = stored});
      }
    }
  }

 private:
  WeightSource stored_as(const ShardedParameter& parameter, const StoredTensor& stored) {
    if (!is_loadable_float(stored.dtype)) {
      not_loadable_.push_back(&stored);
      return {.values = &stored};
    }
    const Shape expected = parameter.stored_transposed ? with_last_two_swapped(parameter.shape) : parameter.shape;
    if (stored.shape != expected) {
      mismatches_.push_back({.stored = &stored, .expected = expected});
      return {.values = &stored};
    }
    if (is_float8(stored.dtype) && stored.dtype != DType::kF8E8M0) {
      return float8(parameter, stored);
    }
    return unscaled(parameter, stored);
  }

  static WeightSource unscaled(const ShardedParameter& parameter, const StoredTensor& stored) {
    const bool turned = parameter.stored_transposed && parameter.shape.size() >= 2;
    return {.encoding = turned ? Encoding::kTransposed : Encoding::kPlain, .values = &stored};
  }

  WeightSource float8(const ShardedParameter& parameter, const StoredTensor& stored) {
    const StoredTensor* const scales = find_scale(checkpoint_, stored.name);
    if (scales == nullptr && !quantization_) {
      return unscaled(parameter, stored);
    }
    if (scales == nullptr) {
      without_scale_.push_back({.values = &stored, .scale = concat(stored.name, kScaleSuffixes.front())});
      return {.values = &stored};
    }
    if (!quantization_) {
      return {.values = &stored}; // its scale is found as a stray one
    }
    if (!is_loadable_float(scales->dtype) && scales->dtype != DType::kU8) {
      not_loadable_.push_back(scales);
      return {.values = &stored, .scales = scales};
    }
    if (parameter.stored_transposed) { // no method stores scales for the turned matrix
      not_loadable_.push_back(&stored);
      return {.values = &stored, .scales = scales};
    }
    std::optional<ScaleBlock> block = scale_block(stored.shape, scales->shape, quantization_->block);
    if (!block && grids_ && is_scale_grid(stored.shape, scales->shape)) {
      uses_grids_ = true;
      block = grids_->block().value_or(ScaleBlock{}); // else refused once all offenders are known
    }
    if (!block) {
      mismatches_.push_back(
          {.stored = scales, .expected = expected_scales(stored.shape, quantization_->block), .partner = &stored});
      return {.values = &stored, .scales = scales};
    }
    return {.encoding = Encoding::kFp8, .values = &stored, .scales = scales, .scale_block = *block};
  }

  static Shape expected_scales(const Shape& values, const std::optional<ScaleBlock>& block) {
    if (!block || values.size() < 2) {
      return {};
    }
    Shape expected = values;
    std::int64_t& rows = expected[expected.size() - 2];
    rows = (rows + block->rows - 1) / block->rows;
    expected.back() = (expected.back() + block->columns - 1) / block->columns;
    return expected;
  }

  std::optional<WeightSource> find_mxfp4(const ShardedParameter& parameter, const std::string& name) {
    const StoredTensor* const blocks = checkpoint_.find(concat(name, "_blocks"));
    if (blocks == nullptr || parameter.shape.size() < 2) {
      return std::nullopt;
    }
    const std::string scales_name = concat(name, "_scales");
    const StoredTensor* const scales = checkpoint_.find(scales_name);
    const WeightSource source{.encoding = Encoding::kMxfp4, .values = blocks, .scales = scales};
    if (scales == nullptr) {
      without_scale_.push_back({.values = blocks, .scale = scales_name});
      return source;
    }
    if (!quantization_) {
      stray_.push_back({.scale = scales, .weight = blocks});
      return source;
    }
    for (const StoredTensor* const part : {blocks, scales}) {
      if (part->dtype != DType::kU8 && (part == blocks || part->dtype != DType::kF8E8M0)) {
        not_loadable_.push_back(part);
        return source;
      }
    }
    Shape expected = with_last_two_swapped(parameter.shape); // [..., out, in]
    const std::int64_t inputs = expected.back();
    expected.back() = inputs / kMxfp4Group;
    const bool whole_groups = inputs % kMxfp4Group == 0;
    if (!whole_groups || scales->shape != expected) {
      mismatches_.push_back({.stored = scales, .expected = expected, .partner = blocks});
    }
    expected.push_back(kMxfp4GroupBytes);
    if (!whole_groups || blocks->shape != expected) {
      mismatches_.push_back({.stored = blocks, .expected = expected, .partner = scales});
    }
    return source;
  }

  /// What GPTQ, AWQ or compressed-tensors store in the place of a weight.
  const StoredTensor* find_packed(const std::string& fqn) const {
    constexpr std::string_view kWeight = ".weight";
    if (!fqn.ends_with(kWeight)) {
      return nullptr;
    }
    const std::string module = fqn.substr(0, fqn.size() - kWeight.size());
    for (const std::string_view packed : {".qweight", ".weight_packed"}) {
      if (const StoredTensor* const stored = checkpoint_.find(concat(module, packed))) {
        return stored;
      }
    }
    return nullptr;
  }

  const Checkpoint& checkpoint_;
  const ShardPlan& plan_;
  const std::optional<QuantizationConfig> quantization_;
  const std::optional<GridBlock> grids_; ///< where config.json does not say the block
  bool uses_grids_ = false;
  std::vector<const ShardedParameter*> missing_;
  std::set<const ShardedParameter*> packed_; ///< stored, but only its quantiser can read it
  std::vector<ShapeMismatch> mismatches_;
  std::vector<const StoredTensor*> not_loadable_;
  std::vector<MissingScale> without_scale_;
  std::vector<StrayScale> stray_;
};

/// The rules asked for, by the index of their parameter.
std::vector<const InitRule*> rules_of(const ShardPlan& plan, const std::vector<NamedInit>& inits) {
  std::vector<const InitRule*> rules(plan.parameters().size(), nullptr);
  for (const NamedInit& init : inits) {
    const ShardedParameter* const parameter = plan.find(init.fqn);
    if (parameter == nullptr) {
      throw InputError({.code = Code::kUnknownParameter,
                        .what = "an initial value is asked for a name that no parameter has",
                        .where = concat("--init ", init.fqn),
                        .why = concat("none of the ", plan.parameters().size(), " parameters has this name"),
                        .fix = "write the parameter's full dotted name, as `tieshard inspect` lists it"});
    }
    const InitRule*& rule = rules[static_cast<std::size_t>(parameter - plan.parameters().data())];
    if (rule != nullptr) {
      throw InputError({.code = Code::kBadFlag,
                        .what = "a command line flag has a value that cannot be used",
                        .where = concat("--init ", init.fqn),
                        .why = concat("two rules are given for ", parameter->fqn),
                        .fix = "give each parameter one rule, under one of its names"});
    }
    rule = &init.rule;
  }
  return rules;
}

[[noreturn]] void refuse_init_of_stored(const Checkpoint& checkpoint,
                                        const std::string& fqn,
                                        const StoredTensor& stored) {
  throw InputError({.code = Code::kBadFlag,
                    .what = "a command line flag has a value that cannot be used",
                    .where = concat("--init ", fqn),
                    .why = concat(checkpoint.file_name(stored), " holds this parameter as ", stored.name),
                    .fix = "leave the rule out: a stored weight is loaded, never replaced"});
}

} // namespace

std::string_view id(Encoding encoding) {
  switch (encoding) {
    case Encoding::kPlain:
      return "plain";
    case Encoding::kTransposed:
      return "transposed";
    case Encoding::kMxfp4:
      return "mxfp4";
    case Encoding::kFp8:
      return "fp8";
  }
  return "unknown";
}

namespace {

/// What a search came to: all sources, or what is wrong.
struct Search {
  WeightSources sources;
  std::vector<Diagnostic> offences;
};

Search search(const Checkpoint& checkpoint, const ShardPlan& plan, const WeightSourceOptions& options) {
  WeightSources sources;
  SourceFinder finder(checkpoint, plan);
  const std::vector<const InitRule*> rules = rules_of(plan, options.inits);
  std::vector<bool> used(checkpoint.tensors().size(), false);
  const auto mark = [&](const StoredTensor* tensor) {
    if (tensor != nullptr) {
      used[static_cast<std::size_t>(tensor - checkpoint.tensors().data())] = true;
    }
  };
  for (std::size_t i = 0; i < plan.parameters().size(); ++i) {
    const ShardedParameter& parameter = plan.parameters()[i];
    WeightSource source = finder.find(parameter);
    if (source.values != nullptr && rules[i] != nullptr) {
      refuse_init_of_stored(checkpoint, parameter.fqn, *source.values);
    }
    if (source.values == nullptr && rules[i] != nullptr) {
      source.init = *rules[i];
    } else if (source.values == nullptr) {
      finder.is_missing(parameter);
    }
    mark(source.values);
    mark(source.scales);
    if (source.encoding == Encoding::kFp8) { // a copy under another name goes with its scale
      mark(find_scale(checkpoint, parameter.fqn));
      for (const std::string& alias : plan.ties().aliases(parameter.fqn)) {
        mark(find_scale(checkpoint, alias));
      }
    }
    sources.of_parameter.push_back(std::move(source));
  }
  if (find_family(checkpoint.config()) == nullptr) {
    finder.find_packed_weights(used);
  }
  finder.find_stray_scales(used);
  std::vector<Diagnostic> offences = finder.offences();
  if (offences.empty()) {
    finder.add_findings(sources.findings);
    list_initialised(plan, sources);
    list_unused(checkpoint, plan, used, sources);
  }
  return {.sources = std::move(sources), .offences = std::move(offences)};
}

} // namespace

WeightSources find_weight_sources(const Checkpoint& checkpoint,
                                  const ShardPlan& plan,
                                  const WeightSourceOptions& options) {
  Search found = search(checkpoint, plan, options);
  if (!found.offences.empty()) {
    throw InputError(found.offences.front());
  }
  return std::move(found.sources);
}

std::vector<Diagnostic> find_weight_offences(const Checkpoint& checkpoint,
                                             const ShardPlan& plan,
                                             const WeightSourceOptions& options) {
  return search(checkpoint, plan, options).offences;
}

} // namespace tieshard
