#include "tieshard/core/families/expert_names.h"

#include <gtest/gtest.h>

namespace tieshard {
namespace {

TEST(ExpertNames, AreThoseOfOneExpertOrOfAll) {
  EXPECT_TRUE(is_expert_weight("model.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_TRUE(is_expert_weight("model.layers.0.mlp.experts.7.up_proj.weight"));
  EXPECT_TRUE(is_expert_weight("model.layers.0.block_sparse_moe.experts.7.w1.weight"));
  EXPECT_TRUE(is_expert_weight("experts.0.weight"));
}

TEST(ExpertNames, AreNotThoseOfWhatChoosesThemOrServesAllTokens) {
  for (const char* name : {"model.layers.0.mlp.router.weight",
                           "model.layers.0.block_sparse_moe.gate.weight",
                           "model.layers.0.mlp.shared_experts.up_proj.weight",
                           "model.layers.0.mlp.up_proj.weight",
                           "experts"}) {
    EXPECT_FALSE(is_expert_weight(name)) << name;
  }
}

} // namespace
} // namespace tieshard
