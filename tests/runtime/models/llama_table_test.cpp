// The module and the table that core makes from config.json alone agree, name by name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/family.h"
#include "tieshard/runtime/models/make_model.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard::testing {
namespace {

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

/// A config of two layers with `more` in it, e.g. "\"head_dim\": 6".
HfConfig config_with(const std::string& more) {
  return HfConfig::parse(concat(R"({"model_type": "llama", "vocab_size": 19, "hidden_size": 12, )",
                                R"("intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 3)",
                                more.empty() ? "" : ", ",
                                more,
                                "}"),
                         "config.json");
}

struct Variant {
  const char* name;
  const char* more;
};

class LlamaTable : public ::testing::TestWithParam<Variant> {
 protected:
  const HfConfig config = config_with(GetParam().more);
  const ParameterTable expected = require_family(config).table(config);
};

TEST_P(LlamaTable, HasTheNamesAndShapesOfTheModuleInItsOrder) {
  const auto model = make_model(config, TieRegistry());
  const ParameterTable table = parameter_table(*model);
  ASSERT_EQ(table.size(), expected.size());
  for (std::size_t index = 0; index < table.size(); ++index) {
    EXPECT_EQ(table[index].fqn, expected[index].fqn);
    EXPECT_EQ(table[index].shape, expected[index].shape) << table[index].fqn;
  }
  EXPECT_TRUE(TieRegistry::of(table).groups().empty());
}

TEST_P(LlamaTable, HasTheNamesOfTheTiedModuleTooWhichDiffersInIdentityOnly) {
  const auto model = make_model(config, TieRegistry::from_map({{kHead, kEmbed}}, expected));
  const ParameterTable table = parameter_table(*model);
  ASSERT_EQ(table.size(), expected.size());
  for (std::size_t index = 0; index < table.size(); ++index) {
    EXPECT_EQ(table[index].fqn, expected[index].fqn);
    EXPECT_EQ(table[index].shape, expected[index].shape) << table[index].fqn;
  }
  const TieRegistry ties = TieRegistry::of(table);
  ASSERT_EQ(ties.groups().size(), 1U);
  EXPECT_EQ(ties.canonical(kHead), kEmbed);
}

TEST_P(LlamaTable, HasTheUnitsOfTheModuleInItsOrder) {
  const auto model = make_model(config, TieRegistry());
  const std::vector<UnitModule> units = model->units();
  const std::vector<UnitSpec> specs = require_family(config).units(config);
  ASSERT_EQ(units.size(), specs.size() + 1);
  EXPECT_EQ(units.front().name, "");
  EXPECT_EQ(units.front().module, model.get());
  const auto modules = model->named_modules();
  for (std::size_t index = 0; index < specs.size(); ++index) {
    EXPECT_EQ(units[index + 1].name, specs[index].name);
    EXPECT_EQ(units[index + 1].module, modules[specs[index].name].get());
  }
}

INSTANTIATE_TEST_SUITE_P(Configs,
                         LlamaTable,
                         ::testing::Values(Variant{"Plain", ""},
                                           Variant{"FewerKeyValueHeads", R"("num_key_value_heads": 1)"},
                                           Variant{"HeadDimApart", R"("head_dim": 6)"},
                                           Variant{"HeadDimNull", R"("head_dim": null)"},
                                           Variant{"AttentionBias", R"("attention_bias": true)"},
                                           Variant{"MlpBias", R"("mlp_bias": true)"},
                                           Variant{"EveryBias", R"("attention_bias": true, "mlp_bias": true)"},
                                           Variant{"Padding", R"("pad_token_id": 3)"}),
                         [](const auto& info) { return std::string(info.param.name); });

} // namespace
} // namespace tieshard::testing
