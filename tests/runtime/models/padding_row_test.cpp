// The row of the padding token gets no gradient from the input side; in a tied model it still gets the head's.

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/family.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard::testing {
namespace {

constexpr std::int64_t kPadding = 3;
constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

HfConfig config_with_padding(const std::string& padding) {
  return HfConfig::parse(concat(R"({"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 6,)",
                                R"( "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": )",
                                padding,
                                "}"),
                         "config.json");
}

/// The gradients of one step over ids in which the padding token stands, by name. Both names of the head hold equal
/// values in every model that this makes.
std::map<std::string, at::Tensor> gradients(const HfConfig& config, bool tied) {
  const ParameterTable table = require_family(config).table(config);
  const TieRegistry ties = tied ? TieRegistry::from_map({{kHead, kEmbed}}, table) : TieRegistry();
  const auto model = make_model(config, ties, {.device = at::kCPU});
  std::int64_t seed = 0;
  {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& named : named_parameters(*model)) {
      const std::int64_t phase = named.fqn == kHead ? 0 : 100 * seed++;
      named.tensor.copy_(at::sin(at::arange(named.tensor.numel(), at::kFloat) + phase).view(named.tensor.sizes()) / 2);
    }
  }
  const at::Tensor ids = at::tensor({1L, kPadding, 2L, kPadding, kPadding, 5L, 7L, 0L}, at::kLong).view({2, 4});
  causal_lm_loss_sum(model->forward(ids), ids).backward();
  std::map<std::string, at::Tensor> result;
  for (const NamedTensor& named : named_parameters(*model)) {
    result[named.fqn] = named.tensor.grad();
  }
  return result;
}

TEST(PaddingRow, OfAnUntiedEmbeddingGetsNoGradientAndTheOthersDo) {
  const at::Tensor embed = gradients(config_with_padding("3"), false).at(kEmbed);
  EXPECT_EQ(embed[kPadding].abs().max().item<float>(), 0.0F);
  EXPECT_GT(embed[1].abs().max().item<float>(), 0.0F);
}

TEST(PaddingRow, OfATiedEmbeddingGetsTheHeadsGradientOnly) {
  const auto untied = gradients(config_with_padding("3"), false);
  const auto tied = gradients(config_with_padding("3"), true);
  EXPECT_GT(untied.at(kHead)[kPadding].abs().max().item<float>(), 0.0F);
  EXPECT_TRUE(at::allclose(tied.at(kEmbed)[kPadding], untied.at(kHead)[kPadding], 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(tied.at(kEmbed), untied.at(kEmbed) + untied.at(kHead), 1e-5, 1e-6));
}

TEST(PaddingRow, IsCountedFromTheEndWhenNegative) {
  const at::Tensor embed = gradients(config_with_padding("-6"), false).at(kEmbed); // 9 - 6
  EXPECT_EQ(embed[kPadding].abs().max().item<float>(), 0.0F);
}

TEST(PaddingRow, IsAnOrdinaryOneWithoutAPaddingToken) {
  const at::Tensor embed = gradients(config_with_padding("null"), false).at(kEmbed);
  EXPECT_GT(embed[kPadding].abs().max().item<float>(), 0.0F);
}

} // namespace
} // namespace tieshard::testing
