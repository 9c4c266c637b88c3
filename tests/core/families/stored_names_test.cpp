#include "tieshard/core/families/stored_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::raised;
using ::testing::SizeIs;

NameMapping map_tensors(const std::vector<FixtureTensor>& tensors, bool rename = true) {
  CheckpointFixture fixture(R"({"model_type": "platypus"})");
  fixture.write(tensors);
  return find_wrapper_mapping(fixture.open(), {.rename = rename});
}

NameMapping map_names(const std::vector<std::string>& names, bool rename = true) {
  std::vector<FixtureTensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back(counting(name, {4}));
  }
  return map_tensors(tensors, rename);
}

void expect_mixture(const std::vector<std::string>& names, const std::string& first, const std::string& second) {
  const auto refused = raised<InputError>([&] { map_names(names); });
  ASSERT_TRUE(refused.has_value()) << names.front();
  EXPECT_EQ(id(refused->code), id(Code::kMixedPrefixes));
  EXPECT_THAT(refused->where, AllOf(HasSubstr(first), HasSubstr(second)));
  EXPECT_FALSE(refused->why.empty() || refused->fix.empty());
}

TEST(WrapperMapping, TakesOutWhatStandsInFrontOfAllNames) {
  for (const std::string& front : std::vector<std::string>{"module.",
                                                           "_orig_mod.",
                                                           "_fsdp_wrapped_module.",
                                                           "base_model.model.",
                                                           "module._orig_mod.",
                                                           "_orig_mod.base_model.model.",
                                                           "_forward_module.module."}) {
    const NameMapping mapping = map_names({front + "a.weight", front + "b.0.weight"});
    EXPECT_THAT(mapping.names,
                ElementsAre(Pair(front + "a.weight", "a.weight"), Pair(front + "b.0.weight", "b.0.weight")));
    ASSERT_THAT(mapping.findings, SizeIs(1));
    EXPECT_EQ(mapping.findings[0].code, Code::kWrapperPrefix);
    EXPECT_EQ(mapping.findings[0].level, Level::kWarning);
    EXPECT_THAT(mapping.findings[0].why, HasSubstr(front + "a.weight -> a.weight"));
  }
}

TEST(WrapperMapping, TakesOutWhatStandsInAllNamesOfAModule) {
  const NameMapping mapping = map_names({"h.0._checkpoint_wrapped_module.a.weight",
                                         "h.0._checkpoint_wrapped_module.b.weight",
                                         "h.1.a.weight",
                                         "h.2.module.weight",
                                         "q.base_layer.weight"});
  EXPECT_THAT(mapping.names,
              ElementsAre(Pair("h.0._checkpoint_wrapped_module.a.weight", "h.0.a.weight"),
                          Pair("h.0._checkpoint_wrapped_module.b.weight", "h.0.b.weight"),
                          Pair("h.2.module.weight", "h.2.weight"),
                          Pair("q.base_layer.weight", "q.weight")));
  EXPECT_THAT(mapping.findings, SizeIs(1));
}

TEST(WrapperMapping, LeavesNamesWithoutWrappersAlone) {
  const NameMapping mapping = map_names({"student.model.a.weight", "student.base_model.b.weight", "modules.weight"});
  EXPECT_THAT(mapping.names, IsEmpty());
  EXPECT_THAT(mapping.findings, IsEmpty());
  EXPECT_THAT(map_names({"a.weight"}, false).names, IsEmpty());
}

TEST(WrapperMapping, LeavesACounterBesideAWrapperAlone) {
  FixtureTensor counter = counting("n_averaged", {2}); // as torch's AveragedModel has it
  counter.dtype = DType::kI64;
  counter.shape = {1};
  const NameMapping mapping = map_tensors({counter, counting("module.a.weight", {4})});
  EXPECT_THAT(mapping.names, ElementsAre(Pair("module.a.weight", "a.weight")));
}

TEST(WrapperMapping, TakesModuleInsideSomeNamesForTheModelsOwn) {
  const NameMapping mapping = map_names({"pool.module.weight", "pool.scale", "b._orig_mod.weight"});
  EXPECT_THAT(mapping.names, ElementsAre(Pair("b._orig_mod.weight", "b.weight")));
}

TEST(WrapperMapping, TakesTheLayerBesideAnAdapterForTheModelsOwn) {
  const NameMapping mapping =
      map_names({"base_model.model.q.base_layer.weight", "base_model.model.q.lora_A.default.weight"});
  EXPECT_THAT(mapping.names,
              ElementsAre(Pair("base_model.model.q.base_layer.weight", "q.base_layer.weight"),
                          Pair("base_model.model.q.lora_A.default.weight", "q.lora_A.default.weight")));
}

TEST(WrapperMapping, RefusesMixturesByTheirStoredNames) {
  expect_mixture({"module.a.weight", "module.b.weight", "c.weight"}, "module.a.weight", "c.weight");
  expect_mixture({"module.a.weight", "module._orig_mod.b.weight"}, "module._orig_mod.b.weight", "module.a.weight");
  expect_mixture({"base_model.model.a.weight", "b.weight"}, "base_model.model.a.weight", "b.weight");
  expect_mixture({"module.h.0._fsdp_wrapped_module.a.weight", "module.h.0.b.weight"},
                 "module.h.0._fsdp_wrapped_module.a.weight",
                 "module.h.0.b.weight");
  expect_mixture({"h.0.module.a.weight", "h.0.a.weight"}, "h.0.module.a.weight", "h.0.a.weight");
}

TEST(WrapperMapping, RefusesWhereNamesAreToStay) {
  const auto refused = raised<InputError>([] { map_names({"module.a.weight"}, false); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kWrapperPrefix);
  EXPECT_EQ(refused->level, Level::kError);
  EXPECT_THAT(refused->fix, HasSubstr("--no-rename"));
}

} // namespace
} // namespace tieshard
