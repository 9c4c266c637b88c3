// tieshard/runtime/train/evaluation.h
//
// The mean loss of a model over a token file.
//
// Flow: trainer, cli/runtime/eval_verb -> [this] -> token_data, models

#pragma once

#include <cstdint>

#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/language_model.h"
#include "tieshard/runtime/train/token_data.h"

namespace tieshard {

struct Evaluation {
  double loss = 0;          ///< nats per target, mean over all targets
  std::int64_t targets = 0; ///< tokens that were predicted
  std::int64_t samples = 0;
  double seconds = 0; ///< of this rank

  /// e to the loss.
  double perplexity() const;
};

/// The first `samples` samples of `data` in the file's order (0: all), `batch` at once, without gradients and without
/// dropout; afterwards the model trains or not as before. Ranks take turns and their sums are added in the order of the
/// samples: any number of ranks gives the same bits. A collective; every rank must call it.
/// @throws InputError data-too-short (no target), token-out-of-range; as agree() on the other ranks
Evaluation evaluate(
    LanguageModel& model, const DeviceMesh& mesh, const TokenData& data, std::int64_t batch, std::int64_t samples = 0);

} // namespace tieshard
