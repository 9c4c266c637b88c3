// The row of the padding token gets no gradient from the input side; in a tied model it still gets the head's.

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/family.h"
#include "tieshard/runtime/models/layers.h"
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

TEST(SharedEmbedding, HasADenseGradientAlsoWhereNothingElseUsesTheWeight) {
  const at::Tensor ids = at::tensor({1L, 4L, 1L, kPadding}, at::kLong).view({2, 2});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::TensorOptions options = at::TensorOptions().dtype(dtype);
    Embedding alone(6, 2, kPadding, options, /*shared=*/false);
    Embedding shared(6, 2, kPadding, options, /*shared=*/true);
    {
      const at::NoGradGuard no_grad;
      alone->weight.fill_(1);
      shared->weight.fill_(1);
    }
    for (int pass = 1; pass <= 2; ++pass) { // the second one adds to what is there
      alone->forward(ids).sum().backward();
      shared->forward(ids).sum().backward();
      ASSERT_EQ(shared->weight.grad().layout(), at::kStrided);
      EXPECT_EQ(shared->weight.grad().scalar_type(), dtype);
      EXPECT_TRUE(at::equal(shared->weight.grad(), alone->weight.grad())) << "pass " << pass;
      EXPECT_EQ(shared->weight.grad()[1][0].item<double>(), 2.0 * pass);
    }
  }
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
