#include "tieshard/core/adapters/adapter_tensors.h"

#include <utility>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

Shape base_shape(const LoraTarget& target) {
  return target.embedding ? Shape{target.in, target.out} : Shape{target.out, target.in};
}

void add_use(const LoraTarget& target, const TiedUse& use, std::vector<AdapterTensor>& tensors) {
  const bool embedding = target.embedding != use.transposed;
  const Shape a{target.rank, target.in};
  const Shape b{target.out, target.rank};
  const auto add = [&](char which, const std::string& parameter, const Shape& shape) {
    tensors.push_back({.stored_name = kPeftPrefix + lora_name(use.module, embedding, which),
                       .parameter = parameter,
                       .shape = use.transposed ? Shape{shape[1], shape[0]} : shape,
                       .role = AdapterTensorRole::kCopy,
                       .transposed = use.transposed});
  };
  add('A', use.transposed ? target.b() : target.a(), use.transposed ? b : a);
  add('B', use.transposed ? target.a() : target.b(), use.transposed ? a : b);
  tensors.push_back({.stored_name = concat(kPeftPrefix, use.module, ".base_layer.weight"),
                     .parameter = target.weight,
                     .shape = base_shape(target),
                     .role = AdapterTensorRole::kBase});
}

} // namespace

std::vector<AdapterTensor> adapter_tensors(const LoraPlan& plan) {
  std::vector<AdapterTensor> tensors;
  for (const LoraTarget& target : plan.targets) {
    tensors.push_back(
        {.stored_name = kPeftPrefix + target.a(), .parameter = target.a(), .shape = {target.rank, target.in}});
    tensors.push_back(
        {.stored_name = kPeftPrefix + target.b(), .parameter = target.b(), .shape = {target.out, target.rank}});
    tensors.push_back({.stored_name = concat(kPeftPrefix, target.module, ".base_layer.weight"),
                       .parameter = target.weight,
                       .shape = base_shape(target),
                       .role = AdapterTensorRole::kBase});
    for (const TiedUse& use : target.uses) {
      add_use(target, use, tensors);
    }
  }
  for (const SavedParameter& saved : plan.saved) {
    for (const std::string& name : saved.names) {
      tensors.push_back({.stored_name = kPeftPrefix + name,
                         .parameter = saved.fqn,
                         .shape = saved.shape,
                         .role = name == saved.fqn ? AdapterTensorRole::kOwn : AdapterTensorRole::kCopy});
    }
  }
  return tensors;
}

} // namespace tieshard
