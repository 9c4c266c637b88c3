#include "tieshard/core/checkpoint/adapter_names.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace tieshard {
namespace {

bool alone(std::vector<std::string> names) {
  std::ranges::sort(names);
  std::vector<StoredTensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back({.name = name, .dtype = DType::kF32, .shape = {2}, .stored_name = name});
  }
  return are_adapters_alone(tensors);
}

TEST(AdapterNames, AreKnownByTheirOwnPart) {
  for (const char* name : {"q.lora_A.weight",
                           "base_model.model.q.lora_B.default.weight",
                           "embed.lora_embedding_A",
                           "q.lora_magnitude_vector",
                           "v.ia3_l",
                           "q.hada_w1_a"}) {
    EXPECT_TRUE(is_adapter_name(name)) << name;
  }
  for (const char* name : {"q.weight", "att.w_lora.lora.0.weight", "explora_A.weight"}) {
    EXPECT_FALSE(is_adapter_name(name)) << name;
  }
}

TEST(AdaptersAlone, AreThoseWithoutTheWeightsThatTheyAreBeside) {
  EXPECT_TRUE(alone({"m.q.lora_A.weight", "m.q.lora_B.weight"}));
  EXPECT_TRUE(alone({"m.q.lora_A.weight", "m.q.lora_B.weight", "m.lm_head.weight"})); // modules_to_save
  EXPECT_FALSE(alone({"m.q.lora_A.weight", "m.q.lora_B.weight", "m.q.base_layer.weight"}));
  EXPECT_FALSE(alone({"m.q.lora_A.weight", "m.q.lora_B.weight", "m.q.weight"}));
  EXPECT_FALSE(alone({"m.q.lora_A.weight", "a.weight", "b.weight"}));
  EXPECT_FALSE(alone({"a.weight"}));
  EXPECT_FALSE(alone({}));
}

} // namespace
} // namespace tieshard
