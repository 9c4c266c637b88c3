#include "tieshard/runtime/models/causal_lm.h"

#include <utility>

#include <ATen/ATen.h>

namespace tieshard {

void CausalLm::set_unit_runner(std::shared_ptr<UnitRunner> runner) {
  runner_ = runner ? std::move(runner) : std::make_shared<UnitRunner>();
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
