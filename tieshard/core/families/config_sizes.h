// tieshard/core/families/config_sizes.h
//
// Sizes of a config.json that a table is built from, refused where no model can have them.
//
// Flow: checkpoint/hf_config.h -> [this] -> one file a family

#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tieshard/core/checkpoint/hf_config.h"

namespace tieshard {

/// @throws InputError config-value, always: the field `key`, what was expected and got, and what to do
[[noreturn]] void refuse_config(const HfConfig& config,
                                std::string_view key,
                                const std::string& why,
                                const std::string& fix);

/// @throws InputError config-value unless `value` is at least 1
void require_positive(const HfConfig& config, std::string_view key, std::int64_t value);

/// The size `key`. @throws InputError config-missing-key, config-value (below 1)
std::int64_t positive(const HfConfig& config, std::string_view key);

/// As positive(), with a value for a field that is absent.
std::int64_t positive_or(const HfConfig& config, std::string_view key, std::int64_t fallback);

/// @throws InputError config-value when a model has more layers (or what else is repeated) than any has: the table
///         would fill the memory before the first weight is looked for
void require_layer_count(const HfConfig& config, std::string_view key, std::int64_t layers);

/// @throws InputError config-value unless `whole` is a multiple of `part`
void require_multiple(const HfConfig& config,
                      std::string_view whole_key,
                      std::int64_t whole,
                      std::string_view part_key,
                      std::int64_t part);

/// a * b. @throws InputError config-value, naming `key`, when that is not a size
std::int64_t product(const HfConfig& config, std::string_view key, std::int64_t a, std::int64_t b);

/// Whether config.json describes one of these classes: the first of `architectures` is it, or is absent, and the
/// model_type is `model_type`, or absent where the architecture says it. Another class of the same model_type (a
/// classifier) has other parameters.
bool is_model_class(const HfConfig& config,
                    std::string_view model_type,
                    std::initializer_list<std::string_view> architectures);

} // namespace tieshard
