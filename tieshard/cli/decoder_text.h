// tieshard/cli/decoder_text.h
//
// What a decoder is computed with, as JSON: every default filled in that config.json leaves to its family.
//
// Flow: inspect -> [this] -> core/families/decoder_config.h

#pragma once

#include "tieshard/cli/json_output.h"
#include "tieshard/core/families/decoder_config.h"

namespace tieshard::cli {

/// An object with the fields of DecoderConfig under their names; "ropes", "layers" and "experts" nested. What is absent
/// is null.
OrderedJson to_json(const DecoderConfig& decoder);

} // namespace tieshard::cli
