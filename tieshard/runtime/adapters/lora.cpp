#include "tieshard/runtime/adapters/lora.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/adapters/adapter_weights.h"
#include "tieshard/runtime/adapters/weight_overlay.h"
#include "tieshard/runtime/fsdp/sharded_mark.h"
#include "tieshard/runtime/models/layers.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard {
namespace {

/// A module of one parameter: what makes a name end in "lora_A.weight".
class WeightOnly : public torch::nn::Module {
 public:
  explicit WeightOnly(const at::Tensor& weight) {
    register_parameter("weight", weight);
  }
};

/// A layer that an adapter can be put on. Of tieshard's own the update is set, of LibTorch's a mark (weight_overlay.h).
struct Layer {
  torch::nn::Module* module = nullptr; ///< null for any other module
  at::Tensor weight{};
  std::optional<LowRankUpdate>* update = nullptr; ///< null for LibTorch's
  bool embedding = false;
  std::int64_t in = 0;
  std::int64_t out = 0;

  bool adapted() const {
    return update != nullptr ? update->has_value() : module->named_children().contains(kOverlayMark);
  }
};

Layer layer_of(torch::nn::Module* module) {
  if (auto* linear = dynamic_cast<LinearImpl*>(module)) {
    return {module, linear->weight, &linear->update, false, linear->in_features(), linear->out_features()};
  }
  if (auto* embedding = dynamic_cast<EmbeddingImpl*>(module)) {
    return {module, embedding->weight, &embedding->update, true, embedding->count(), embedding->size()};
  }
  if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(module)) {
    return {module, linear->weight, nullptr, false, linear->options.in_features(), linear->options.out_features()};
  }
  if (auto* embedding = dynamic_cast<torch::nn::EmbeddingImpl*>(module)) {
    const auto& options = embedding->options;
    return {module, embedding->weight, nullptr, true, options.num_embeddings(), options.embedding_dim()};
  }
  return {};
}

using LayersByName = std::map<std::string, Layer>;

LayersByName layers_of(const torch::nn::Module& root) {
  LayersByName layers;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    const Layer layer = layer_of(item.value().get());
    if (layer.module != nullptr) {
      layers.emplace(item.key(), layer);
    }
  }
  return layers;
}

const Layer& find(const LayersByName& layers, const std::string& name, bool embedding) {
  const auto found = layers.find(name);
  if (found == layers.end() || found->second.embedding != embedding) {
    throw UsageError({.code = Code::kUnknownTarget,
                      .what = "an adapter is asked for modules that the model does not have",
                      .where = name,
                      .why = concat("expected ", embedding ? "an Embedding" : "a Linear", " of tieshard or LibTorch"),
                      .fix = "make the plan from this module's own adaptable_modules()"});
  }
  return found->second;
}

/// A second plan would freeze what the first one trains.
void require_no_adapter(const LayersByName& layers) {
  for (const auto& [name, layer] : layers) {
    if (layer.adapted()) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "a module has an adapter already",
                        .where = name,
                        .why = "expected a module without any adapter: one plan says all that is trained",
                        .fix = "add adapters once, with all targets in one plan"});
    }
  }
}

at::Tensor make_parameter(const NamedInit& init, const Shape& shape, const at::Tensor& base, at::ScalarType dtype) {
  const at::TensorOptions options = at::TensorOptions().dtype(dtype).device(base.device());
  at::Tensor parameter =
      base.is_meta() ? at::empty(shape, options) : initial_values(init, shape, dtype).to(base.device());
  return parameter.requires_grad_(true);
}

/// Only what the adapter trains keeps a gradient.
void freeze_base(torch::nn::Module& root, const LoraPlan& plan) {
  std::set<std::string> trained;
  for (const LoraTarget& target : plan.targets) {
    trained.insert(target.a());
    trained.insert(target.b());
  }
  for (const SavedParameter& saved : plan.saved) {
    trained.insert(saved.fqn);
  }
  for (const NamedTensor& named : unique_parameters(root)) {
    at::Tensor tensor = named.tensor;
    tensor.requires_grad_(trained.contains(named.fqn));
  }
}

/// An overlay knows neither the layer's input nor another layer's parameters.
void require_overlay_can(const Layer& layer, const LoraTarget& target, double dropout) {
  if (layer.update == nullptr && (dropout > 0 || !target.uses.empty())) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "an adapter asks for more than a layer of LibTorch can give",
                      .where = target.module,
                      .why = dropout > 0 ? "dropout is of the layer's input" : "one adapter is for several layers",
                      .fix = "use tieshard's Linear and Embedding (runtime/models/layers.h) in their place"});
  }
}

void require_layers(const LayersByName& layers, const LoraPlan& plan) {
  require_no_adapter(layers);
  for (const LoraTarget& target : plan.targets) {
    require_overlay_can(find(layers, target.module, target.embedding), target, plan.config.dropout);
    for (const TiedUse& use : target.uses) {
      require_overlay_can(find(layers, use.module, target.embedding != use.transposed), target, plan.config.dropout);
    }
  }
}

void set_updates(
    const LayersByName& layers, const LoraTarget& target, const at::Tensor& a, const at::Tensor& b, double dropout) {
  LowRankUpdate update{.a = a, .b = b, .scaling = target.scaling, .dropout = dropout};
  const Layer& layer = find(layers, target.module, target.embedding);
  if (layer.update == nullptr) {
    layer.module->register_module(kOverlayMark, std::make_shared<OverlayMark>(target.scaling));
    return;
  }
  *layer.update = update;
  for (const TiedUse& use : target.uses) {
    update.turned = use.transposed;
    *find(layers, use.module, target.embedding != use.transposed).update = update;
  }
}

ParameterTable add_to_layers(torch::nn::Module& root, const LoraPlan& plan, at::ScalarType dtype) {
  const LayersByName layers = layers_of(root);
  require_layers(layers, plan); // all of them, before anything is changed
  const std::vector<NamedInit> inits = lora_inits(plan);
  ParameterTable added;
  for (std::size_t index = 0; index < plan.targets.size(); ++index) {
    const LoraTarget& target = plan.targets[index];
    const Layer& layer = find(layers, target.module, target.embedding);
    const Shape shapes[2] = {{target.rank, target.in}, {target.out, target.rank}};
    at::Tensor parameters[2];
    for (std::size_t which = 0; which < 2; ++which) {
      const NamedInit& init = inits[2 * index + which];
      parameters[which] = make_parameter(init, shapes[which], layer.weight, dtype);
      if (target.embedding) {
        layer.module->register_parameter(which == 0 ? "lora_embedding_A" : "lora_embedding_B", parameters[which]);
      } else {
        layer.module->register_module(which == 0 ? "lora_A" : "lora_B",
                                      std::make_shared<WeightOnly>(parameters[which]));
      }
      added.push_back({.fqn = init.fqn,
                       .shape = shapes[which],
                       .dtype = from_torch(dtype),
                       .identity = reinterpret_cast<std::uintptr_t>(parameters[which].unsafeGetTensorImpl())});
    }
    set_updates(layers, target, parameters[0], parameters[1], plan.config.dropout);
  }
  freeze_base(root, plan);
  return added;
}

} // namespace

std::vector<AdaptableModule> adaptable_modules(const torch::nn::Module& module, const std::string& output_head) {
  std::vector<AdaptableModule> modules;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    const Layer layer = layer_of(item.value().get());
    if (layer.module != nullptr) {
      modules.push_back({.name = item.key(),
                         .embedding = layer.embedding,
                         .output_head = item.key() == output_head,
                         .in = layer.in,
                         .out = layer.out});
    }
  }
  return modules;
}

ParameterTable add_lora(torch::nn::Module& module, const LoraPlan& plan, at::ScalarType dtype) {
  for (const NamedTensor& named : unique_parameters(module)) {
    if (is_marked_sharded(named.tensor)) {
      throw UsageError({.code = Code::kWrongState,
                        .what = "an adapter is added to a sharded module as if it were none",
                        .where = named.fqn,
                        .why = "its parameters would not be managed: each rank would train its own",
                        .fix = "call add_lora(*state, plan), or add_lora(module, plan) before fully_shard()"});
    }
  }
  return add_to_layers(module, plan, dtype);
}

void add_lora(FsdpState& state, const LoraPlan& plan, at::ScalarType dtype) {
  state.reshard();
  const ParameterTable added = add_to_layers(state.root(), plan, dtype);
  state.manage_added(added);
}

TrainedShare trained_share(const FsdpState& state) {
  TrainedShare share;
  for (const FsdpParam* parameter : state.managed()) {
    const std::int64_t elements = numel(parameter->spec().shape);
    share.all += elements;
    share.trained += parameter->trainable() ? elements : 0;
  }
  return share;
}

} // namespace tieshard
