#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/config_field.h"
#include "tieshard/core/checkpoint/hf_config.h"

namespace tieshard {
namespace {

constexpr std::string_view kSliding = "sliding_attention";

/// The objects of config.json that hold the parameters of one kind of layer; a later one overlays those before it.
class RopeFields {
 public:
  explicit RopeFields(const std::string& where) : where_(where) {}

  void overlay(std::string path, const Json& fields) {
    if (!fields.is_object()) {
      refuse_config_value(where_, path, "an object", fields);
    }
    sets_.push_back({.value = &fields, .path = std::move(path)});
  }

  bool empty() const {
    return sets_.empty();
  }

  FoundField find(std::string_view field) const {
    for (auto set = sets_.rbegin(); set != sets_.rend(); ++set) {
      if (const Json* value = config_member(*set->value, field)) {
        return {.value = value, .path = concat(set->path, ".", field)};
      }
    }
    return {};
  }

  /// One set for all layers holds no other sets.
  void refuse_nested() const {
    for (const FoundField& set : sets_) {
      for (const auto& [name, value] : set.value->items()) {
        if (value.is_object()) {
          refuse_config_value(
              where_, concat(set.path, ".", name), "one set of rotary parameters for all layers", value);
        }
      }
    }
  }

  void read(std::string_view field, double& out) const {
    if (const FoundField found = find(field); found.value != nullptr) {
      out = config_number(where_, found.path, *found.value);
    }
  }

  void read(std::string_view field, std::optional<double>& out) const {
    if (const FoundField found = find(field); found.value != nullptr) {
      out = config_number(where_, found.path, *found.value);
    }
  }

  void read(std::string_view field, std::int64_t& out) const {
    if (const FoundField found = find(field); found.value != nullptr) {
      out = config_integer(where_, found.path, *found.value);
    }
  }

  void read(std::string_view field, std::string& out) const {
    if (const FoundField found = find(field); found.value != nullptr) {
      out = config_text(where_, found.path, *found.value);
    }
  }

  void read(std::string_view field, bool& out) const {
    if (const FoundField found = find(field); found.value != nullptr) {
      out = config_boolean(where_, found.path, *found.value);
    }
  }

  void require(std::string_view field) const {
    if (find(field).value == nullptr) {
      refuse_missing_field(where_, concat(sets_.back().path, ".", field), "a number");
    }
  }

 private:
  const std::string& where_;
  std::vector<FoundField> sets_;
};

/// One set for all layers: `rope_scaling` of version 4 wins over `rope_parameters`, as in transformers. An empty one is
/// none.
RopeFields flat_fields(const Json& document, const std::string& where) {
  RopeFields fields(where);
  const Json* scaling = config_member(document, "rope_scaling");
  if (scaling != nullptr && !scaling->empty()) {
    fields.overlay("rope_scaling", *scaling);
  } else if (const Json* parameters = config_member(document, "rope_parameters")) {
    fields.overlay("rope_parameters", *parameters);
  }
  fields.refuse_nested();
  return fields;
}

/// The set of one kind of layer; `rope_scaling` of version 4 is of the layers without a window.
RopeFields fields_of(const Json& document, const std::string& where, std::string_view layer_type) {
  RopeFields fields(where);
  if (const Json* parameters = config_member(document, "rope_parameters")) {
    if (!parameters->is_object()) {
      refuse_config_value(where, "rope_parameters", "a set for each kind of layer", *parameters);
    }
    for (const auto& [name, value] : parameters->items()) {
      if (!value.is_object() && !value.is_null()) {
        refuse_config_value(where, concat("rope_parameters.", name), "a set for each kind of layer", value);
      }
    }
    if (const Json* own = config_member(*parameters, layer_type)) {
      fields.overlay(concat("rope_parameters.", layer_type), *own);
    }
  }
  const Json* scaling = config_member(document, "rope_scaling");
  if (scaling != nullptr && layer_type != kSliding) {
    fields.overlay("rope_scaling", *scaling);
  }
  return fields;
}

/// As transformers does, which fails without them: their defaults would be another model's.
void require_fields(const RopeFields& fields, const std::string& type) {
  if (type == "linear" || type == "llama3" || type == "yarn") {
    fields.require("factor");
  }
  if (type == "llama3") {
    fields.require("low_freq_factor");
    fields.require("high_freq_factor");
  }
}

} // namespace

RopeConfig HfConfig::rope(std::string_view layer_type, const RopeConfig& fallback) const {
  const RopeFields fields = layer_type.empty() ? flat_fields(*json_, where_) : fields_of(*json_, where_, layer_type);
  RopeConfig rope = fields.empty() ? fallback : RopeConfig();
  rope.theta = number_or(layer_type == kSliding ? "rope_local_base_freq" : "rope_theta", fallback.theta);
  rope.partial_rotary_factor = number_or("partial_rotary_factor", fallback.partial_rotary_factor);
  fields.read("type", rope.type);
  fields.read("rope_type", rope.type); // the newer spelling wins
  fields.read("rope_theta", rope.theta);
  fields.read("partial_rotary_factor", rope.partial_rotary_factor);
  fields.read("factor", rope.factor);
  fields.read("low_freq_factor", rope.low_freq_factor);
  fields.read("high_freq_factor", rope.high_freq_factor);
  fields.read("original_max_position_embeddings", rope.original_max_position_embeddings);
  if (layer_type.empty()) { // beside the set it wins, as in transformers
    rope.original_max_position_embeddings =
        integer_or("original_max_position_embeddings", rope.original_max_position_embeddings);
  }
  fields.read("beta_fast", rope.beta_fast);
  fields.read("beta_slow", rope.beta_slow);
  fields.read("truncate", rope.truncate);
  fields.read("attention_factor", rope.attention_factor);
  fields.read("mscale", rope.mscale);
  fields.read("mscale_all_dim", rope.mscale_all_dim);
  if (!fields.empty()) {
    require_fields(fields, rope.type);
  }
  return rope;
}

} // namespace tieshard
