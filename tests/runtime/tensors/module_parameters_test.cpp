#include "tieshard/runtime/tensors/module_parameters.h"

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tied_module.h"

namespace tieshard::testing {
namespace {

std::vector<std::string> names(const std::vector<NamedTensor>& parameters) {
  std::vector<std::string> list;
  for (const NamedTensor& named : parameters) {
    list.push_back(named.fqn);
  }
  return list;
}

TEST(NamedParameters, ListATiedTensorUnderEachOfItsNamesInRegistrationOrder) {
  const TiedModule module(11, 4);
  const std::vector<NamedTensor> named = named_parameters(module);
  EXPECT_THAT(names(named),
              ::testing::ElementsAre("embed_tokens.weight", "body.weight", "body.bias", "lm_head.weight"));
  EXPECT_TRUE(named.front().tensor.is_same(module.embed_tokens->weight));
  EXPECT_TRUE(named.back().tensor.is_same(module.embed_tokens->weight));
}

TEST(UniqueParameters, ListATiedTensorOnceUnderItsFirstName) {
  const TiedModule module(11, 4);
  EXPECT_THAT(names(unique_parameters(module)),
              ::testing::ElementsAre("embed_tokens.weight", "body.weight", "body.bias"));
}

TEST(UniqueParameters, KeepTwoTensorsOfEqualValuesAndAFrozenOne) {
  TiedModule module(11, 4);
  module.lm_head = module.replace_module("lm_head", std::make_shared<TiedHead>(module.embed_tokens->weight.clone()));
  module.body->bias.set_requires_grad(false);
  EXPECT_THAT(names(unique_parameters(module)),
              ::testing::ElementsAre("embed_tokens.weight", "body.weight", "body.bias", "lm_head.weight"));
}

TEST(UniqueParameters, SeeThatAViewOfATensorIsAnotherParameter) {
  torch::nn::Module module;
  const at::Tensor weight = module.register_parameter("weight", at::ones({2, 3}));
  module.register_parameter("view", weight.detach()); // one storage, two parameters: that is no tie
  EXPECT_EQ(unique_parameters(module).size(), 2U);
}

TEST(ParameterTableOfAModule, GivesTheNamesOfOneTensorOneIdentityAndOthersTheirOwn) {
  const TiedModule module(11, 4);
  const ParameterTable table = parameter_table(module);
  ASSERT_EQ(table.size(), 4U);
  EXPECT_EQ(table[0].identity, table[3].identity);
  EXPECT_NE(table[0].identity, table[1].identity);
  EXPECT_NE(table[1].identity, table[2].identity);
}

TEST(ParameterTableOfAModule, HasShapesAndDtypesOnMetaToo) {
  torch::nn::Module module;
  module.register_parameter("matrix", at::empty({5, 3}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16)));
  module.register_parameter("scalar", at::empty({}, at::TensorOptions().dtype(at::kDouble)));
  const ParameterTable table = parameter_table(module);
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(table[0].shape, (Shape{5, 3}));
  EXPECT_EQ(table[0].dtype, DType::kBF16);
  EXPECT_EQ(table[1].shape, Shape{});
  EXPECT_EQ(table[1].dtype, DType::kF64);
}

TEST(ParameterTableOfAModule, IsEmptyWithoutParameters) {
  torch::nn::Module module;
  module.register_buffer("buffer", at::ones({3}));
  EXPECT_TRUE(parameter_table(module).empty());
}

} // namespace
} // namespace tieshard::testing
