#include "tieshard/runtime/adapters/weight_overlay.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace tieshard {
namespace {

/// Null for a module without an adapter of this kind.
const OverlayMark* mark_of(const torch::nn::Module& module) {
  const auto child = module.named_children().find(kOverlayMark);
  return child == nullptr ? nullptr : dynamic_cast<const OverlayMark*>(child->get());
}

at::Tensor sum_of(const at::Tensor& weight, const at::Tensor& product, double scaling) {
  return weight + (product * scaling).to(weight.scalar_type());
}

} // namespace

WeightOverlay::WeightOverlay(torch::nn::Module& unit) {
  const auto overlay = [this](torch::nn::Module& module) {
    const OverlayMark* mark = mark_of(module);
    if (mark == nullptr) {
      return;
    }
    const auto parameters = module.named_parameters();
    if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&module)) {
      replaced_.all.push_back({&linear->weight, linear->weight});
      linear->weight =
          sum_of(linear->weight, parameters["lora_B.weight"].matmul(parameters["lora_A.weight"]), mark->scaling);
    } else if (auto* embedding = dynamic_cast<torch::nn::EmbeddingImpl*>(&module)) {
      replaced_.all.push_back({&embedding->weight, embedding->weight});
      embedding->weight = sum_of(
          embedding->weight, parameters["lora_embedding_B"].matmul(parameters["lora_embedding_A"]).t(), mark->scaling);
    }
  };
  overlay(unit);
  for (const auto& item : unit.named_modules("", /*include_self=*/false)) {
    overlay(*item.value());
  }
}

WeightOverlay::ReplacedWeights::~ReplacedWeights() {
  for (const Replaced& replaced : all) {
    *replaced.member = replaced.parameter;
  }
}

} // namespace tieshard
