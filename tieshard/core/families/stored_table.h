// tieshard/core/families/stored_table.h
//
// What a checkpoint alone tells of a model whose architecture is not known: its parameters are those that are stored.
//
// Flow:   checkpoint, stored_ties.h -> [this] -> ties/resolved_model.h
// Source: MXFP4 as in openai/gpt-oss (`*_blocks`, `*_scales`); FP8 as transformers stores it (`*.weight_scale_inv`).

#pragma once

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/parameter_table.h"

namespace tieshard {

/// One parameter for each stored tensor of a wide float, in its dtype and the order of names; the aliases of
/// ties_of_stored last.
///
/// Quantised weights are one parameter in BF16, in the shape that they have dequantised: FP8 values with their scales;
/// where quantization_config says mxfp4, `X_blocks` [..., out, in/32, 16] with `X_scales` as X [..., in, out]. Integers
/// and booleans are no parameters. A head that only a tie gives a value is listed, too.
ParameterTable table_of_stored(const Checkpoint& checkpoint);

} // namespace tieshard
