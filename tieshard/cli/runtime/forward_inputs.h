// tieshard/cli/runtime/forward_inputs.h
//
// The tokens that `tieshard forward` is given: a raw file, or tensors of a safetensors file.
//
// Flow: forward_verb -> [this] -> core/checkpoint/safetensors_file.h, runtime/train/token_data.h

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

#include "tieshard/runtime/models/language_model.h"

namespace tieshard::cli {

struct ForwardInputs {
  at::Tensor ids;         ///< int64 [B, T]
  at::Tensor labels;      ///< undefined, or int64 [B, T], as wide as what predicts them
  at::Tensor decoder_ids; ///< of an encoder-decoder, int64 [B, T]; where the file has none, the labels shifted right
};

/// Reads what `model` takes from `tokens`. A file whose bytes begin as a safetensors header does is one, whatever its
/// name, unless `data_dtype` says that it is raw.
/// @param data_dtype  "auto", or the dtype of a raw file
/// @param count       first tokens of a raw file; 0: all
/// @throws InputError data-malformed, token-out-of-range, and what SafetensorsFile::open and TokenData::open throw
ForwardInputs read_forward_inputs(const std::filesystem::path& tokens,
                                  const std::string& data_dtype,
                                  std::int64_t count,
                                  const LanguageModel& model,
                                  std::int64_t vocab);

} // namespace tieshard::cli
