#include "tieshard/runtime/models/language_model.h"

#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/models/lean_functions.h"
#include "tieshard/runtime/models/linear_cross_entropy.h"

namespace tieshard {

void require_decoder_only(const SequenceInfo& info) {
  const bool both = info.documents_BT.defined() && info.cache != nullptr;
  if (info.decoder_ids_BT.defined() || both) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a forward of this model cannot take that",
                      .where = both ? "documents and a cache" : "ids for a decoder",
                      .why = both ? "a cache goes on with one sequence in each row" : "the model is no encoder-decoder",
                      .fix = both ? "give one of the two" : "give the tokens as `ids` alone"});
  }
}

void LanguageModel::set_unit_runner(std::shared_ptr<UnitRunner> runner) {
  runner_ = runner ? std::move(runner) : std::make_shared<UnitRunner>();
}

at::Tensor LanguageModel::forward(const at::Tensor& ids, const SequenceInfo& info) {
  return runner_->run(*this, ids, [&](const at::Tensor& tokens) {
    const at::Tensor logits = head().forward(hidden_states(tokens, info));
    return logits_softcap() > 0 ? softcap(logits, logits_softcap()) : logits;
  });
}

at::Tensor LanguageModel::loss(const at::Tensor& ids,
                               const at::Tensor& labels,
                               double scale,
                               const SequenceInfo& given) {
  SequenceInfo info = given;
  if (!info.decoder_ids_BT.defined()) {
    info.decoder_ids_BT = decoder_ids_of(labels);
  }
  return runner_->run(*this, ids, [&](const at::Tensor& tokens) {
    const at::Tensor x_BTH = hidden_states(tokens, info);
    const std::int64_t shift = predicts_next() ? 1 : 0; // the last position predicts nothing then
    const std::int64_t predicted = x_BTH.size(1) - shift;
    const at::Tensor x_RH = x_BTH.narrow(1, 0, predicted).reshape({-1, x_BTH.size(2)});
    const std::optional<LowRankUpdate>& update = head().update;
    return linear_cross_entropy_sum(
        x_RH,
        head().weight,
        labels.narrow(1, shift, predicted).reshape({-1}),
        {.ignored = kIgnoredLabel,
         .scale = scale,
         .softcap = logits_softcap(),
         .added = update ? AddedLogits{update->narrow(x_RH, is_training()), update->up()} : AddedLogits{}});
  });
}

std::int64_t LanguageModel::count_targets(const at::Tensor& labels_BT) const {
  return predicts_next() ? tieshard::count_targets(labels_BT) : (labels_BT != kIgnoredLabel).sum().item<std::int64_t>();
}

at::Tensor LanguageModel::loss_sum(const at::Tensor& logits_BTV, const at::Tensor& labels_BT) const {
  return predicts_next()
             ? causal_lm_loss_sum(logits_BTV, labels_BT)
             : at::cross_entropy_loss(
                   logits_BTV.flatten(0, 1).to(at::kFloat), labels_BT.flatten(), {}, at::Reduction::Sum, kIgnoredLabel);
}

std::int64_t count_targets(const at::Tensor& labels_BT) {
  const std::int64_t length = labels_BT.size(1);
  return length < 2 ? 0 : (labels_BT.narrow(1, 1, length - 1) != kIgnoredLabel).sum().item<std::int64_t>();
}

at::Tensor causal_lm_loss_sum(const at::Tensor& logits_BTV, const at::Tensor& labels_BT) {
  const std::int64_t length = logits_BTV.size(1);
  const std::int64_t vocab = logits_BTV.size(2);
  const at::Tensor predictions = logits_BTV.narrow(1, 0, length - 1).reshape({-1, vocab}).to(at::kFloat);
  const at::Tensor targets = labels_BT.narrow(1, 1, length - 1).reshape({-1});
  return at::cross_entropy_loss(predictions, targets, {}, at::Reduction::Sum, kIgnoredLabel);
}

} // namespace tieshard
