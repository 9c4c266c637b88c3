#include "tieshard/runtime/tensors/validate_shared_object.h"

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/tensors/module_parameters.h"

#include "tests/support/diagnostics.h"
#include "tests/support/tied_module.h"

namespace tieshard::testing {
namespace {

/// Parameters "a", "b", "c" of shape [3, 2]; equal letters of `same` share a tensor: "aab" ties a and b.
struct Letters : torch::nn::Module {
  explicit Letters(const std::string& same, const at::TensorOptions& options = {}) {
    std::map<char, at::Tensor> tensors;
    for (std::size_t index = 0; index < same.size(); ++index) {
      at::Tensor& tensor = tensors[same[index]];
      if (!tensor.defined()) {
        tensor = at::ones({3, 2}, options);
      }
      register_parameter(std::string(1, static_cast<char>('a' + index)), tensor);
    }
  }
};

TieRegistry ties_of(const torch::nn::Module& module) {
  return TieRegistry::of(parameter_table(module));
}

TEST(ValidateSharedObject, ReturnsTheTiesThatAModuleHasByIdentity) {
  const TieRegistry ties = validate_shared_object(Letters("aba"));
  ASSERT_EQ(ties.groups().size(), 1U);
  EXPECT_EQ(ties.groups().front().canonical, "a");
  EXPECT_EQ(ties.aliases("a"), std::vector<std::string>{"c"});
  EXPECT_TRUE(validate_shared_object(Letters("abc")).groups().empty());
}

TEST(ValidateSharedObject, RefusesTwoEqualTensorsUnderATie) {
  expect_refusal([] { validate_shared_object(Letters("abb"), ties_of(Letters("aab"))); },
                 Code::kTieNotShared,
                 {"should be one tensor are two", "a and b", "equal values", "drift apart"});
}

TEST(ValidateSharedObject, RefusesTwoDifferentTensorsUnderATie) {
  const Letters module("abc");
  module.named_parameters()["b"].detach().mul_(2);
  expect_refusal([&] { validate_shared_object(module, ties_of(Letters("aab"))); },
                 Code::kTieNotShared,
                 {"a and b", "different values"});
}

TEST(ValidateSharedObject, RefusesTwoTensorsWithoutValuesUnderATie) {
  const Letters module("abc", at::TensorOptions().device(at::kMeta));
  expect_refusal([&] { validate_shared_object(module, ties_of(Letters("aab"))); },
                 Code::kTieNotShared,
                 {"a and b", "without values"});
}

TEST(ValidateSharedObject, RefusesTwoShapesUnderATie) {
  torch::nn::Module module;
  module.register_parameter("a", at::ones({3, 2}));
  module.register_parameter("b", at::ones({2, 3}));
  expect_refusal([&] { validate_shared_object(module, ties_of(Letters("aa"))); },
                 Code::kTieNotShared,
                 {"a and b", "[3, 2]", "[2, 3]"});
}

TEST(ValidateSharedObject, RefusesOneTensorUnderNamesThatTheRegistryHoldsApart) {
  expect_refusal([] { validate_shared_object(Letters("aba"), ties_of(Letters("abc"))); },
                 Code::kTieNotShared,
                 {"should be two tensors are one", "a and c"});
}

TEST(ValidateSharedObject, ChecksEachOfSeveralAliases) {
  const TieRegistry three = ties_of(Letters("aaa"));
  EXPECT_NO_THROW(validate_shared_object(Letters("aaa"), three));
  expect_refusal([&] { validate_shared_object(Letters("aab"), three); }, Code::kTieNotShared, {"a and c"});
  expect_refusal([&] { validate_shared_object(Letters("aba"), three); }, Code::kTieNotShared, {"a and b"});
}

TEST(ValidateSharedObject, RefusesANameThatTheModuleDoesNotHave) {
  expect_refusal([] { validate_shared_object(Letters("a"), ties_of(Letters("aa"))); },
                 Code::kTieUnknownName,
                 {"b", "1 parameter names"});
}

TEST(ValidateSharedObject, SeesATieBrokenByReplacingAModule) {
  TiedModule module(11, 4);
  const TieRegistry ties = validate_shared_object(module);
  module.embed_tokens = module.replace_module("embed_tokens", torch::nn::Embedding(11, 4));
  expect_refusal([&] { validate_shared_object(module, ties); },
                 Code::kTieNotShared,
                 {"embed_tokens.weight", "lm_head.weight", "different values"});
}

} // namespace
} // namespace tieshard::testing
