// tieshard/core/families/attention_windows.h
//
// Which layers of a decoder see a window of keys only.
//
// Flow:   one file a family -> [this] -> decoder_config.h
// Source: transformers' configuration classes (5.24): sliding_window, layer_types and what stands for them when absent.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/decoder_config.h"

namespace tieshard {

/// `sliding_window` in keys; nothing where it is null, or absent without a default. @throws InputError config-value
std::optional<std::int64_t> sliding_window(const HfConfig& config, std::optional<std::int64_t> fallback);

/// That window where `use_sliding_window` is true, else none (Qwen). @throws InputError config-value
std::optional<std::int64_t> sliding_window_if_used(const HfConfig& config);

/// The same for all layers: the family knows one kind of attention.
/// @throws InputError config-value when `layer_types` names another kind
void set_one_window(const HfConfig& config, DecoderConfig& decoder, std::optional<std::int64_t> window);

/// `layer_types` says which layers have the window; without it `slides(layer)` does, counted from 0.
/// @throws InputError config-value: a kind other than full_attention and sliding_attention, another number of layers, a
///         layer that slides where there is no window
void set_windows_by_layer(const HfConfig& config,
                          DecoderConfig& decoder,
                          std::optional<std::int64_t> window,
                          const std::function<bool(std::int64_t layer)>& slides);

} // namespace tieshard
