// Builds a tied model, shards it, takes a step and proves that the tie is still one tensor, with the installed runtime.

#include <iostream>

#include <torch/torch.h>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/plan/shard_plan.h"
#include "tieshard/core/ties/tie_registry.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/optim/optimizer_guard.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/validate_shared_object.h"

int main() {
  using namespace tieshard;
  const HfConfig config = HfConfig::parse(R"({"model_type": "llama", "tie_word_embeddings": true, "vocab_size": 11,
      "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
      "max_position_embeddings": 16})",
                                          "config.json");
  const Family& family = require_family(config);
  const ParameterTable table = family.table(config);
  const TieRegistry ties = TieRegistry::from_map({{"lm_head.weight", "model.embed_tokens.weight"}}, table);
  const auto model = make_model(config, ties, {.device = at::kCPU});
  for (const NamedTensor& parameter : unique_parameters(*model)) {
    const torch::NoGradGuard no_grad;
    parameter.tensor.fill_(0.1);
  }

  const DeviceMesh mesh;
  const ShardPlan plan = ShardPlan::build(table, ties, mesh.size(), {.units = family.units(config)});
  const auto state = fully_shard(*model, plan, mesh);
  auto optimizer = OptimizerGuard(state).build<torch::optim::SGD>(torch::optim::SGDOptions(0.1));

  const at::Tensor ids = torch::arange(6).reshape({1, 6});
  const at::Tensor logits = model->forward(ids);
  causal_lm_loss_sum(logits, ids).backward();
  optimizer.step();
  validate_shared_object(*model, ties);
  std::cout << "logits " << logits.sizes() << ", " << plan.parameters().size() << " parameters\n";
  return logits.sizes() == at::IntArrayRef{1, 6, 11} ? 0 : 1;
}
