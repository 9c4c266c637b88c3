// tieshard/runtime/models/language_model.h
//
// What every language model offers to the rest of the runtime: a forward, its units, and the loss.
//
// Flow: make_model -> [this] -> load, fsdp, train

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tieshard/runtime/models/kv_cache.h"
#include "tieshard/runtime/models/layers.h"
#include "tieshard/runtime/models/unit_runner.h"

namespace tieshard {

/// A submodule that is gathered and reduced as one, or several of them together.
struct UnitModule {
  std::string name; ///< its fqn; "" for the model itself
  torch::nn::Module* module = nullptr;
  std::vector<torch::nn::Module*> with{}; ///< gathered when the first of all runs, freed when all have run
};

/// What a forward is told beside its tokens.
struct SequenceInfo {
  /// int64 [B, T], not decreasing along T: the document of each token. A token sees its own document only, and counts
  /// its position from that document's begin. Undefined: each row is one document.
  at::Tensor documents_BT{};

  /// Of an encoder-decoder, int64 [B, T]: what the decoder is given, ids being the encoder's.
  at::Tensor decoder_ids_BT{};

  /// Keys and values of the tokens before `ids`, which are added to it; null: `ids` begin the sequence. Not with
  /// documents, and without gradients only.
  KvCache* cache = nullptr;
};

/// @throws UsageError wrong-state for what a decoder-only model cannot take: decoder ids, and documents with a cache
void require_decoder_only(const SequenceInfo& info);

class LanguageModel : public torch::nn::Module {
 public:
  /// ids int64 [B, T] -> logits [B, T, V], in the dtype of the parameters.
  /// @throws UsageError wrong-state for what the model cannot take: documents or a cache with an encoder-decoder,
  ///         decoder ids without one, both documents and a cache
  at::Tensor forward(const at::Tensor& ids, const SequenceInfo& info = {});

  /// scale * the sum of the cross entropy over all targets, in nats: causal_lm_loss_sum(forward(ids), labels) of a
  /// decoder, and of an encoder-decoder, whose labels are not shifted, over all positions. The logits exist in pieces
  /// only, forward and backward (linear_cross_entropy.h). `scale` is mostly 1 / the number of targets of the global
  /// batch.
  /// @param ids, labels  int64 [B, T]; of an encoder-decoder [B, S] and [B, T], and the decoder is given the labels,
  ///                     shifted right, unless `info` says otherwise
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels, double scale = 1.0, const SequenceInfo& info = {});

  /// Targets in labels [B, T]: those that are not kIgnoredLabel, at positions that something predicts.
  std::int64_t count_targets(const at::Tensor& labels_BT) const;

  /// What loss() computes, from logits [B, T, V] that forward() gave; float32, 0-dim.
  at::Tensor loss_sum(const at::Tensor& logits_BTV, const at::Tensor& labels_BT) const;

  /// Whether position t predicts label t + 1 (a decoder) or label t.
  virtual bool predicts_next() const {
    return true;
  }

  /// What an encoder-decoder's decoder is given where it has to say `labels`, int64 [B, T]: those, shifted right. Of a
  /// decoder undefined.
  virtual at::Tensor decoder_ids_of(const at::Tensor& /*labels_BT*/) const {
    return {};
  }

  /// Decoder layers that keep keys and values: the size of a KvCache for this model. 0: it takes none.
  virtual std::int64_t cached_layers() const {
    return 0;
  }

  /// The model itself first, then each decoder layer.
  virtual std::vector<UnitModule> units() = 0;

  /// What runs the units from now on; null for the default, which calls through.
  void set_unit_runner(std::shared_ptr<UnitRunner> runner);

  const std::shared_ptr<UnitRunner>& unit_runner() const noexcept {
    return runner_;
  }

 protected:
  /// ids int64 [B, T] -> what the head is applied to [B, T, H]. Runs inside the root unit.
  virtual at::Tensor hidden_states(const at::Tensor& ids, const SequenceInfo& info) = 0;

  /// Its weight is [V, H]; the embedding where they are tied.
  virtual const LinearImpl& head() const = 0;

  /// The logits become cap * tanh(logits / cap); 0: they stay.
  virtual double logits_softcap() const {
    return 0.0;
  }

 private:
  std::shared_ptr<UnitRunner> runner_ = std::make_shared<UnitRunner>();
};

/// A label that is no target.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// Targets in labels [B, T]: those at positions 1 .. T-1 that are not kIgnoredLabel.
std::int64_t count_targets(const at::Tensor& labels_BT);

/// Sum over all targets of the cross entropy, in nats, computed in float32: logits[:, t] predicts labels[:, t + 1]; the
/// last position predicts nothing. Divide by the number of targets of the global batch for the mean: a mean of rank
/// means is wrong when ranks hold unequal counts. A batch without targets gives 0 and zero gradients.
at::Tensor causal_lm_loss_sum(const at::Tensor& logits_BTV, const at::Tensor& labels_BT);

} // namespace tieshard
