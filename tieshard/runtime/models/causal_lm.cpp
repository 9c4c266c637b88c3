#include "tieshard/runtime/models/causal_lm.h"

#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/runtime/models/linear_cross_entropy.h"

namespace tieshard {

void CausalLm::set_unit_runner(std::shared_ptr<UnitRunner> runner) {
  runner_ = runner ? std::move(runner) : std::make_shared<UnitRunner>();
}

at::Tensor CausalLm::forward(const at::Tensor& ids) {
  return runner_->run(*this, ids, [this](const at::Tensor& tokens) { return head().forward(hidden_states(tokens)); });
}

at::Tensor CausalLm::loss(const at::Tensor& ids, const at::Tensor& labels, double scale) {
  return runner_->run(*this, ids, [&](const at::Tensor& tokens) {
    const at::Tensor x_BTH = hidden_states(tokens);
    const std::int64_t predicted = x_BTH.size(1) - 1; // the last position predicts nothing
    const at::Tensor x_RH = x_BTH.narrow(1, 0, predicted).reshape({-1, x_BTH.size(2)});
    const std::optional<LowRankUpdate>& update = head().update;
    return linear_cross_entropy_sum(
        x_RH,
        head().weight,
        labels.narrow(1, 1, predicted).reshape({-1}),
        kIgnoredLabel,
        scale,
        update ? AddedLogits{update->narrow(x_RH, is_training()), update->up()} : AddedLogits{});
  });
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
