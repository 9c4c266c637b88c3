// tieshard/core/adapters/module_pattern.h
//
// Which modules a name, a list of names or a regular expression means, as PEFT reads them.
//
// Flow:   lora_config -> [this] -> lora_plan
// Source: PEFT's check_target_module_exists: an entry of a list is a module's whole name or its end after a dot; a text
//         is a regular expression for the whole name.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

/// At most one of the three is set; none of them: no module.
struct ModulePattern {
  std::vector<std::string> names{}; ///< "q_proj", "layers.0.mlp.up_proj", or a full name
  std::string regex{};              ///< ECMAScript, for the whole name
  bool all_linear = false;          ///< every linear layer but the output head

  bool empty() const noexcept {
    return names.empty() && regex.empty() && !all_linear;
  }
};

/// True for "self_attn.q_proj" and "q_proj" of "model.layers.0.self_attn.q_proj".
bool ends_with_name(std::string_view module, std::string_view name);

/// Whether `pattern` means `module`, all_linear left out.
/// @throws InputError adapter-config for a regular expression that cannot be read
bool matches(const ModulePattern& pattern, const std::string& module);

/// Whether all of `text` matches `regex`. @throws InputError adapter-config
bool matches_whole(const std::string& regex, const std::string& text);

/// The first number of a module's name that follows a container's: 3 of "model.layers.3.mlp"; with `container`, that
/// which follows a part of this name. -1 without one.
long layer_index(const std::string& module, const std::string& container);

} // namespace tieshard
