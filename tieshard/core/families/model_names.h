// tieshard/core/families/model_names.h
//
// The names of a model as sets: which stored names it knows, and which parameter each gives a value.
//
// Flow: parameter_table.h -> [this] -> prefix_rule.h, name_mapping.cpp

#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "tieshard/core/families/family.h"
#include "tieshard/core/families/parameter_table.h"

namespace tieshard {

/// Points into the table, which has to live as long.
class ModelNames {
 public:
  ModelNames(const ParameterTable& table, const Family& family);

  /// Index in the table of the parameter that a tensor of this name gives its values: of that name, or of the name
  /// without `_blocks`.
  std::optional<std::size_t> parameter(std::string_view name) const;

  /// True for a parameter, for what stands beside parameters in their module (scales), and for a buffer that the family
  /// knows in one of the model's modules.
  bool knows(std::string_view name) const;

  /// True when some parameter's name has `part` between its dots.
  bool has_part(std::string_view part) const;

  const ParameterTable& table() const {
    return table_;
  }

 private:
  const ParameterTable& table_;
  const Family& family_;
  std::unordered_map<std::string_view, std::size_t> parameters_;
  std::unordered_map<std::string_view, bool> modules_; ///< and whether they hold parameters themselves
  std::unordered_set<std::string_view> parts_;
};

} // namespace tieshard
