#include "tieshard/runtime/models/expert_routing.h"

#include <tuple>

#include <ATen/ATen.h>

namespace tieshard {
namespace {

/// Weights and experts of each token, [R, C] both.
std::tuple<at::Tensor, at::Tensor> choose(const at::Tensor& logits_RE, const ExpertsConfig& config) {
  if (config.layout == ExpertLayout::kStackedInterleaved) {
    auto [logits_RC, experts_RC] = at::topk(logits_RE, config.chosen, 1);
    return {at::softmax(logits_RC, 1), experts_RC};
  }
  auto [weights_RC, experts_RC] = at::topk(at::softmax(logits_RE, 1, at::kFloat), config.chosen, 1);
  if (config.renormalise) {
    weights_RC = weights_RC / weights_RC.sum(1, /*keepdim=*/true);
  }
  return {weights_RC.to(logits_RE.scalar_type()), experts_RC};
}

} // namespace

ExpertRouting route(const at::Tensor& logits_RE, const ExpertsConfig& config) {
  const auto [weights_RC, experts_RC] = choose(logits_RE, config);
  const auto [experts_M, order_M] = at::sort(experts_RC.flatten(), /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor counts = at::bincount(experts_M, {}, config.count).to(at::kCPU);
  const auto* first = counts.const_data_ptr<std::int64_t>();
  return {.rows_M = at::div(order_M, config.chosen, "floor"),
          .weights_M = weights_RC.flatten().index_select(0, order_M),
          .counts = {first, first + config.count}};
}

at::Tensor ExpertRouting::dispatch(const at::Tensor& x_RH) const {
  return x_RH.index_select(0, rows_M);
}

at::Tensor ExpertRouting::combine(const at::Tensor& y_MH, std::int64_t rows) const {
  const at::Tensor none = at::zeros({rows, y_MH.size(1)}, y_MH.options());
  return none.index_add(0, rows_M, y_MH * weights_M.unsqueeze(1));
}

} // namespace tieshard
