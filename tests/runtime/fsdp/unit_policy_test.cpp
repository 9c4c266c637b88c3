// Which modules each policy takes.

#include "tieshard/runtime/fsdp/unit_policy.h"

#include <torch/nn/modules/container/modulelist.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/small_net.h"
#include "tests/support/user_t5.h"

namespace tieshard::testing {
namespace {

std::vector<std::string> taken(const UnitPolicy& policy, torch::nn::Module& root) {
  std::vector<std::string> names;
  for (const UnitModule& unit : policy(root)) {
    EXPECT_EQ(unit.module, root.named_modules("", false)[unit.name].get()) << unit.name;
    names.push_back(unit.name);
  }
  return names;
}

TEST(UnitsOfClass, AreThoseOfAnyOfTheClassesAndNeverTheRoot) {
  UserT5 model;
  EXPECT_THAT(taken(units_of_class<UserDecoderLayerImpl>(), model),
              ::testing::ElementsAre("decoder.block.0", "decoder.block.1"));
  EXPECT_THAT(taken(units_of_class<UserEncoderLayerImpl, UserDecoderLayerImpl>(), model), ::testing::SizeIs(4));
  EXPECT_THAT(taken(units_of_class<torch::nn::Module>(), model), ::testing::Not(::testing::Contains("")));
  EXPECT_THAT(taken(units_of_class<torch::nn::ModuleDictImpl>(), model), ::testing::IsEmpty());
}

TEST(UnitsWhere, GetTheNameAndTheModule) {
  SmallNet net;
  const auto policy = units_where([](const std::string& fqn, const torch::nn::Module& module) {
    return fqn == "last" && !module.children().size();
  });
  EXPECT_THAT(taken(policy, net), ::testing::ElementsAre("last"));
}

TEST(UnitsOfSize, GrowFromTheLeavesUntilTheyAreLargeEnough) {
  SmallNet net; // block.first 30, block.second 42, last 21 elements
  EXPECT_THAT(taken(units_of_size(42), net), ::testing::ElementsAre("block.second"));
  EXPECT_THAT(taken(units_of_size(43), net), ::testing::ElementsAre("block"));
  EXPECT_THAT(taken(units_of_size(25), net), ::testing::ElementsAre("block.first", "block.second"));
  EXPECT_THAT(taken(units_of_size(1000), net), ::testing::IsEmpty());
}

TEST(UnitsOfSize, CountATiedTensorOnceAndTakeNoContainer) {
  UserT5 model(11, 6); // the matrix 66, an encoder layer 42, a decoder layer 84
  EXPECT_THAT(taken(units_of_size(66), model),
              ::testing::ElementsAre("shared", "encoder", "decoder.block.0", "decoder.block.1"));
}

TEST(UnitsOfSize, HaveToHaveOne) {
  expect_refusal([] { units_of_size(0); }, Code::kWrongState, {"units_of_size", "got 0"});
}

TEST(UnitsNamed, AreThoseAndEachNameHasToExist) {
  SmallNet net;
  EXPECT_THAT(taken(units_named({"last", "block.first"}), net), ::testing::ElementsAre("block.first", "last"));
  expect_refusal([&] { units_named({"last", "blok", "head"})(net); }, Code::kUnknownUnit, {"blok, head"});
}

} // namespace
} // namespace tieshard::testing
