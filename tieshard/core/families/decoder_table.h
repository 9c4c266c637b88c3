// tieshard/core/families/decoder_table.h
//
// The parameters of a decoder, from its numbers and switches alone.
//
// Flow:   decoder_config.h -> [this] -> decoder_family.h
// Source: the constructors of transformers' modeling files (5.24), in whose order modules register; experts under the
//         names that files have, where transformers 5 stacks them in memory.

#pragma once

#include <string_view>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/decoder_config.h"
#include "tieshard/core/families/parameter_table.h"

namespace tieshard {

/// Embedding, layers, last norm and head. @param config  for the dtype, and for errors
/// @throws InputError config-value when a shape has more elements than a file can hold
ParameterTable decoder_table(const HfConfig& config, const DecoderConfig& decoder);

/// True for the frequencies that old files store for each layer; every model computes them from config.json.
bool is_rotary_buffer(std::string_view name);

/// The stack of layers: "model.layers".
inline constexpr std::string_view kDecoderStack = "model.layers";

} // namespace tieshard
