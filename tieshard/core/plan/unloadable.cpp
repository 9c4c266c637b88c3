#include "tieshard/core/plan/unloadable.h"

#include <algorithm>
#include <string_view>

#include "tieshard/core/base/units.h"
#include "tieshard/core/families/family.h"

namespace tieshard {
namespace {

constexpr std::size_t kMostNamed = 20; ///< a message that lists more is not read

/// Keys of config.json that say one of the sizes that differ, as "vocab_size = 32000".
std::string keys_that_say(const HfConfig& config, const std::vector<ShapeMismatch>& mismatches) {
  if (find_family(config) == nullptr) {
    return ""; // what its fields mean is not known
  }
  std::string text;
  for (const std::string_view key : {"vocab_size", "hidden_size", "intermediate_size", "head_dim"}) {
    if (!config.has(key)) {
      continue;
    }
    const std::int64_t value = config.integer(key);
    const bool involved = std::ranges::any_of(mismatches, [value](const ShapeMismatch& mismatch) {
      const Shape& expected = mismatch.expected;
      const Shape& stored = mismatch.stored->shape;
      for (std::size_t dim = 0; dim < expected.size(); ++dim) {
        if (expected[dim] == value && (dim >= stored.size() || stored[dim] != value)) {
          return true;
        }
      }
      return false;
    });
    if (involved) {
      text += concat(text.empty() ? "" : ", ", key, " = ", value);
    }
  }
  return text;
}

} // namespace

std::string list_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) {
    text += concat(i == 0 ? "" : ", ", format_name(names[i]));
  }
  if (names.size() > kMostNamed) {
    text += concat(" and ", names.size() - kMostNamed, " more");
  }
  return text;
}

Diagnostic shapes_differ(const Checkpoint& checkpoint, const std::vector<ShapeMismatch>& mismatches) {
  std::string where;
  std::string why;
  bool scaled = false;
  for (std::size_t i = 0; i < std::min(mismatches.size(), kMostNamed); ++i) {
    const auto& [stored, expected, partner] = mismatches[i];
    const std::string separator = i == 0 ? "" : "; ";
    const std::string belongs = partner == nullptr ? "" : concat(" (with ", partner->name, ")");
    where += concat(separator, checkpoint.file_name(*stored), ", ", stored->name, belongs);
    why += concat(separator, stored->name, ": expected ", to_string(expected), ", stored ", to_string(stored->shape));
    scaled = scaled || partner != nullptr;
  }
  if (mismatches.size() > kMostNamed) {
    why += concat(" and ", mismatches.size() - kMostNamed, " more");
  }
  const std::string keys = keys_that_say(checkpoint.config(), mismatches);
  std::string fix = "use the config.json that these weights were saved with";
  if (!keys.empty()) {
    fix += concat("; this one says ", keys);
  }
  if (scaled) {
    fix += "; scales are one for all, one a row, or one a block as weight_block_size of its quantization_config says";
  }
  return {.code = Code::kShapeMismatch,
          .what = "a stored shape is not the one that the config asks for",
          .where = where,
          .why = why,
          .fix = fix};
}

Diagnostic dtypes_not_loadable(const Checkpoint& checkpoint,
                               const std::vector<const StoredTensor*>& offenders,
                               const std::optional<QuantizationConfig>& quantization) {
  std::vector<std::string> names;
  for (const StoredTensor* stored : offenders) {
    names.push_back(concat(stored->name, " (", name(stored->dtype), ")"));
  }
  const std::string method = quantization ? concat("; config.json says quant_method = ",
                                                   quantization->method.empty() ? "(none)" : quantization->method,
                                                   ", of which FP8 and MXFP4 can be read")
                                          : "";
  return {.code = Code::kDtypeNotLoadable,
          .what = "a parameter is stored in a dtype that cannot be trained",
          .where = concat(checkpoint.directory().string(), ": ", list_names(names)),
          .why = concat("expected F16, BF16, F32, F64 or an 8-bit float", method),
          .fix =
              "use the checkpoint that this one was quantised from, or load it with the library that "
              "quantised it, dequantise it and save it in bf16"};
}

Diagnostic scales_missing(const Checkpoint& checkpoint, const std::vector<MissingScale>& missing) {
  std::vector<std::string> values;
  std::vector<std::string> scales;
  for (const auto& [stored, scale] : missing) {
    values.push_back(stored->name);
    scales.push_back(scale);
  }
  return {.code = Code::kScaleMissing,
          .what = "quantised values are stored without their scales",
          .where = concat(checkpoint.directory().string(), ": ", list_names(values)),
          .why = concat("no file holds ", list_names(scales)),
          .fix =
              "complete the download or the conversion: without their scales the values have no meaning; "
              "if they were never scaled, take quantization_config out of config.json"};
}

Diagnostic scales_stray(const Checkpoint& checkpoint, const std::vector<StrayScale>& strays, bool quantised) {
  std::vector<std::string> names;
  std::string second; // of a weight that has one which is applied
  for (const StrayScale& stray : strays) {
    const StoredTensor* const applied = find_scale(checkpoint, stray.weight->name);
    if (second.empty() && quantised && is_float8(stray.weight->dtype) && applied != nullptr && applied != stray.scale) {
      second = concat("a weight has one scale: that of ",
                      stray.weight->name,
                      " is ",
                      applied->name,
                      ", and ",
                      stray.scale->name,
                      " would be a second; which of them is right cannot be told");
    }
    names.push_back(concat(stray.scale->name, " (of ", stray.weight->name, ", ", name(stray.weight->dtype), ")"));
  }
  return {
      .code = Code::kStrayScale,
      .what = "a stored scale belongs to nothing that would apply it",
      .where = concat(checkpoint.directory().string(), ": ", list_names(names)),
      .why = !second.empty() ? second
             : quantised ? "quantization_config of config.json is there, but no weight is stored in the way that these "
                           "scales would apply to: F8 values, or MXFP4 blocks"
                         : "config.json has no quantization_config, which says that scales are to be applied; without "
                           "them the weights would be wrong by a factor",
      .fix = !second.empty()
                 ? "delete the scale that is not the weight's, or export the checkpoint again"
                 : "restore the config.json that these weights were saved with, its quantization_config included; or "
                   "dequantise the checkpoint and save it without scales"};
}

} // namespace tieshard
