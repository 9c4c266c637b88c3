#include "tieshard/core/plan/mxfp4_source.h"

#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard::testing {
namespace {

const std::string kQuantised = R"({"quantization_config": {"quant_method": "mxfp4"}})";

FixtureTensor zeros(const std::string& name, DType dtype, const Shape& shape) {
  return {name, dtype, shape, std::vector<std::byte>(checked_bytes(shape, dtype).value())};
}

std::vector<FixtureTensor> mxfp4(const std::string& name) {
  return {zeros(name + "_blocks", DType::kU8, {4, 1, 16}), zeros(name + "_scales", DType::kU8, {4, 1})};
}

/// Names of blocks and scales of the first parameter; empty where it has none.
std::vector<std::string> found(const std::string& config,
                               const ParameterTable& table,
                               const std::vector<FixtureTensor>& tensors,
                               const std::map<std::string, std::string>& ties = {}) {
  CheckpointFixture fixture(config);
  const Checkpoint checkpoint = fixture.write(tensors).open();
  const ShardPlan plan = ShardPlan::build(table, TieRegistry::of(checkpoint, table, {.explicit_ties = ties}), 2);
  const auto source = mxfp4_source(checkpoint, plan, plan.parameters()[0]);
  return source ? std::vector<std::string>{source->values->name, source->scales->name} : std::vector<std::string>();
}

ParameterInfo parameter(const std::string& fqn, std::uint64_t identity) {
  return {.fqn = fqn, .shape = {32, 4}, .identity = identity};
}

TEST(Mxfp4Source, IsWhatAParameterIsDecodedFrom) {
  const std::vector<std::string> names{"b_blocks", "b_scales"};
  EXPECT_EQ(found(kQuantised, {parameter("b", 1)}, mxfp4("b")), names);
  EXPECT_EQ(found(kQuantised, {parameter("a", 1), parameter("b", 2)}, mxfp4("b"), {{"b", "a"}}), names); // its alias
}

TEST(Mxfp4Source, IsNoneOfAnyOtherParameter) {
  EXPECT_TRUE(found(kQuantised, {parameter("a", 1)}, {zeros("a", DType::kBF16, {32, 4})}).empty());
  EXPECT_TRUE(found("{}", {parameter("b", 1)}, mxfp4("b")).empty());
  EXPECT_TRUE(found(kQuantised, {parameter("c", 1)}, mxfp4("b")).empty());
}

} // namespace
} // namespace tieshard::testing
