// tieshard/core/adapters/adapter_tensors.h
//
// The tensors of adapter_model.safetensors: PEFT's names, and the parameter that each of them is.
//
// Flow:   lora_plan -> [this] -> adapter_file (in), runtime/adapters (out)
// Source: PEFT save_pretrained: "base_model.model." before a module's name, the adapter's own name left out.

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/adapters/lora_plan.h"

namespace tieshard {

inline constexpr const char* kPeftPrefix = "base_model.model.";

/// How a tensor of the file stands to the parameter that it holds.
enum class AdapterTensorRole {
  kOwn,  ///< the parameter's values; has to be there
  kCopy, ///< the same values for another use of a tied weight; may be absent, and must be equal
  kBase, ///< the weight of the base under a target, which PEFT saves too for embeddings and heads; read only
};

struct AdapterTensor {
  std::string stored_name;
  std::string parameter; ///< of the model with its adapters, canonical
  Shape shape;           ///< as stored
  AdapterTensorRole role = AdapterTensorRole::kOwn;
  bool transposed = false; ///< of the parameter
};

/// Every tensor that an adapter of this plan has, those that are optional too.
std::vector<AdapterTensor> adapter_tensors(const LoraPlan& plan);

} // namespace tieshard
