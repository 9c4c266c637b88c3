#include "tieshard/core/adapters/lora_plan.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/diagnostics.h"

namespace tieshard {
namespace {

using testing::CheckpointFixture;
using ::testing::ElementsAre;
using testing::expect_refusal;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// The plan of `config` on a Llama with one layer, width 4 and vocabulary 6.
LoraPlan plan(const LoraConfig& config, bool tied = true) {
  CheckpointFixture fixture(tied ? testing::tied_config() : testing::untied_config());
  fixture.write(testing::tiny_llama_tensors(!tied));
  const ResolvedModel model = resolve_model(fixture.path());
  return plan_lora(config, adaptable_modules(model), model.table, model.ties);
}

LoraConfig on(std::vector<std::string> names) {
  LoraConfig config{.rank = 2, .alpha = 6};
  config.targets.names = std::move(names);
  return config;
}

std::vector<std::string> modules_of(const LoraPlan& lora) {
  std::vector<std::string> modules;
  for (const LoraTarget& target : lora.targets) {
    modules.push_back(target.module);
  }
  return modules;
}

TEST(LoraPlan, AnEntryIsTheEndOfANameAfterADot) {
  EXPECT_THAT(modules_of(plan(on({"q_proj", "mlp.up_proj"}))),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(ends_with_name("model.layers.0.self_attn.q_proj", "proj"));
  EXPECT_TRUE(ends_with_name("lm_head", "lm_head"));
}

TEST(LoraPlan, SizesAreThoseOfTheWholeWeights) {
  const LoraTarget target = plan(on({"down_proj"})).targets.front();
  EXPECT_EQ(target.in, 8);
  EXPECT_EQ(target.out, 4);
  EXPECT_EQ(target.a(), "model.layers.0.mlp.down_proj.lora_A.weight");
  EXPECT_EQ(target.b(), "model.layers.0.mlp.down_proj.lora_B.weight");
  EXPECT_EQ(target.scaling, 3.0);
}

TEST(LoraPlan, ARegularExpressionIsForTheWholeName) {
  LoraConfig config = on({});
  config.targets.regex = R"(.*\.(k|v)_proj)";
  EXPECT_THAT(modules_of(plan(config)),
              ElementsAre("model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"));
  config.targets.regex = "q_proj";
  expect_refusal([&] { plan(config); }, Code::kUnknownTarget, {"q_proj"});
  config.targets.regex = "(";
  expect_refusal([&] { plan(config); }, Code::kAdapterConfig, {"\"(\""});
}

TEST(LoraPlan, AllLinearLeavesEmbeddingAndHeadOut) {
  LoraConfig config = on({});
  config.targets.all_linear = true;
  for (const bool tied : {true, false}) {
    EXPECT_THAT(modules_of(plan(config, tied)), SizeIs(7));
  }
  config.excluded.names = {"mlp.up_proj", "self_attn.o_proj"};
  EXPECT_THAT(modules_of(plan(config)), SizeIs(5));
}

TEST(LoraPlan, PatternsGiveSomeModulesOtherRanks) {
  LoraConfig config = on({"q_proj", "v_proj"});
  config.rank_pattern = {{"q_proj", 4}};
  config.alpha_pattern = {{".*v_proj", 16}};
  config.rslora = true;
  const LoraPlan lora = plan(config);
  EXPECT_EQ(lora.targets[0].rank, 4);
  EXPECT_DOUBLE_EQ(lora.targets[0].scaling, 6 / std::sqrt(4.0));
  EXPECT_EQ(lora.targets[1].rank, 2);
  EXPECT_DOUBLE_EQ(lora.targets[1].scaling, 16 / std::sqrt(2.0));
  config.rank_pattern = {{"q_proj", 4}, {".*q_proj", 5}};
  expect_refusal([&] { plan(config); }, Code::kAdapterConfig, {"rank_pattern", "q_proj"});
}

TEST(LoraPlan, LayersAreCountedAsPeftCountsThem) {
  EXPECT_EQ(layer_index("model.layers.3.self_attn.q_proj", ""), 3);
  EXPECT_EQ(layer_index("layers.3.q_proj", ""), -1); // PEFT wants one part before the list's name
  EXPECT_EQ(layer_index("layers.3.q_proj", "layers"), 3);
  EXPECT_EQ(layer_index("model.layers.1.experts.7.up", "experts"), 7);
  EXPECT_EQ(layer_index("lm_head", ""), -1);
  LoraConfig config = on({"q_proj"});
  config.layers_to_transform = {0};
  EXPECT_THAT(modules_of(plan(config)), SizeIs(1));
  config.layers_to_transform = {1};
  expect_refusal([&] { plan(config); }, Code::kUnknownTarget, {"q_proj"});
}

TEST(LoraPlan, AnUnknownNameIsRefusedAndThoseThatThereAreAreListed) {
  expect_refusal([] { plan(on({"q_proj", "c_attn"})); }, Code::kUnknownTarget, {"c_attn", "down_proj, embed_tokens"});
  LoraConfig of_a_file = on({"q_proj", "c_attn"});
  of_a_file.every_name_matches = false;
  EXPECT_THAT(modules_of(plan(of_a_file)), SizeIs(1));
  LoraConfig saves = on({"q_proj"});
  saves.modules_to_save = {"classifier"};
  expect_refusal([&] { plan(saves); }, Code::kUnknownTarget, {"modules_to_save", "classifier"});
}

TEST(LoraPlan, ATiedTargetIsRefusedUntilTheCallerChooses) {
  for (const char* module : {"lm_head", "embed_tokens"}) {
    expect_refusal([&] { plan(on({module})); },
                   Code::kTiedTarget,
                   {"lm_head.weight", "model.embed_tokens.weight", "--lora-tied both", "--lora-tied named"});
    EXPECT_THAT(plan(on({module}), /*tied=*/false).targets, SizeIs(1));
  }
}

TEST(LoraPlan, OneAdapterForBothUsesIsTheEmbeddings) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"lm_head"}, {"embed_tokens"}, {"lm_head", "embed_tokens"}}) {
    LoraConfig config = on(names);
    config.tied = TiedTarget::kBoth;
    const LoraPlan lora = plan(config);
    ASSERT_THAT(lora.targets, SizeIs(1));
    EXPECT_EQ(lora.targets[0].a(), "model.embed_tokens.lora_embedding_A");
    EXPECT_EQ(lora.targets[0].in, 6);
    EXPECT_EQ(lora.targets[0].out, 4);
    ASSERT_THAT(lora.targets[0].uses, SizeIs(1));
    EXPECT_EQ(lora.targets[0].uses[0].module, "lm_head");
    EXPECT_TRUE(lora.targets[0].uses[0].transposed);
  }
}

TEST(LoraPlan, AnAdapterForTheNamedUseAloneStaysThere) {
  LoraConfig config = on({"lm_head"});
  config.tied = TiedTarget::kNamed;
  const LoraPlan lora = plan(config);
  ASSERT_THAT(lora.targets, SizeIs(1));
  EXPECT_EQ(lora.targets[0].a(), "lm_head.lora_A.weight");
  EXPECT_THAT(lora.targets[0].uses, IsEmpty());
  EXPECT_TRUE(lora.targets[0].tied);
}

TEST(LoraPlan, ModulesToSaveAreFoundByTheEndOfTheirNamesAsInPeft) {
  LoraConfig config = on({"q_proj", "up_proj"});
  config.modules_to_save = {"norm", "mlp"};
  const LoraPlan lora = plan(config);
  EXPECT_THAT(modules_of(lora), ElementsAre("model.layers.0.self_attn.q_proj")); // up_proj is inside mlp
  std::vector<std::string> saved;
  for (const SavedParameter& parameter : lora.saved) {
    saved.push_back(parameter.fqn);
  }
  EXPECT_THAT(saved,
              ::testing::UnorderedElementsAre("model.layers.0.mlp.gate_proj.weight",
                                              "model.layers.0.mlp.up_proj.weight",
                                              "model.layers.0.mlp.down_proj.weight",
                                              "model.layers.0.input_layernorm.weight",
                                              "model.layers.0.post_attention_layernorm.weight",
                                              "model.norm.weight"));
}

TEST(LoraPlan, ATiedModuleIsSavedUnderBothNamesOrRefused) {
  LoraConfig config = on({"q_proj"});
  config.modules_to_save = {"lm_head"};
  for (const TiedTarget tied : {TiedTarget::kRefuse, TiedTarget::kNamed}) {
    config.tied = tied;
    expect_refusal([&] { plan(config); }, Code::kTiedTarget, {"modules_to_save", "lm_head.weight"});
  }
  config.tied = TiedTarget::kBoth;
  EXPECT_THAT(plan(config).saved.at(0).names, ElementsAre("model.embed_tokens.weight", "lm_head.weight"));
}

TEST(LoraPlan, InitialValuesAreThoseOfPeft) {
  const std::vector<NamedInit> linear = lora_inits(plan(on({"down_proj"})));
  ASSERT_THAT(linear, SizeIs(2));
  EXPECT_EQ(linear[0].rule.kind, InitRule::Kind::kUniform);
  EXPECT_DOUBLE_EQ(linear[0].rule.b, 1 / std::sqrt(8.0)); // kaiming_uniform with a = sqrt(5)
  EXPECT_DOUBLE_EQ(linear[0].rule.a, -linear[0].rule.b);
  EXPECT_EQ(linear[1].rule.kind, InitRule::Kind::kConstant);
  EXPECT_EQ(linear[1].rule.a, 0);
  LoraConfig gaussian = on({"down_proj"});
  gaussian.init = LoraInit::kGaussian;
  gaussian.seed = 7;
  EXPECT_EQ(lora_inits(plan(gaussian))[0].rule.kind, InitRule::Kind::kNormal);
  EXPECT_EQ(lora_inits(plan(gaussian))[0].rule.b, 0.5);
  EXPECT_EQ(lora_inits(plan(gaussian))[0].rule.seed, 7U);
  const std::vector<NamedInit> embedding = lora_inits(plan(on({"embed_tokens"}), /*tied=*/false));
  EXPECT_EQ(embedding[0].rule.kind, InitRule::Kind::kConstant);
  EXPECT_EQ(embedding[1].rule.kind, InitRule::Kind::kNormal);
}

TEST(LoraPlan, OneAdapterForSeveralUsesHasOneRankAndOneScaling) {
  LoraConfig config = on({"lm_head"});
  config.tied = TiedTarget::kBoth;
  config.alpha_pattern = {{"lm_head", 3}};
  expect_refusal(
      [&] { plan(config); }, Code::kAdapterConfig, {"model.embed_tokens and lm_head", "scaling 3 ", "scaling 1.5"});
  config.alpha_pattern = {{"embed_tokens", 3}};
  expect_refusal([&] { plan(config); }, Code::kAdapterConfig, {"model.embed_tokens and lm_head"});
  config.alpha_pattern = {};
  config.rank_pattern = {{"lm_head", 1}};
  expect_refusal([&] { plan(config); }, Code::kAdapterConfig, {"rank 2", "rank 1"});
  config.rank_pattern = {{"lm_head", 1}, {"embed_tokens", 1}};
  EXPECT_EQ(plan(config).targets.at(0).rank, 1);
  EXPECT_THAT(plan(config, /*tied=*/false).targets, SizeIs(1)); // two weights: each has its own
}

TEST(LoraPlan, AnExcludedNameOrALayerThatNothingHasIsRefused) {
  LoraConfig config = on({"q_proj"});
  config.excluded.names = {"self_attn", "nope", "up_proj"};
  expect_refusal([&] { plan(config); }, Code::kUnknownTarget, {"exclude_modules, self_attn, nope", "q_proj"});
  config.excluded.names = {"up_proj"};
  EXPECT_THAT(plan(config).targets, SizeIs(1));
  config.layers_to_transform = {0, 7, 9};
  expect_refusal([&] { plan(config); }, Code::kUnknownTarget, {"layers_to_transform, 7, 9"});
  config.every_name_matches = false; // as PEFT reads a file
  EXPECT_THAT(plan(config).targets, SizeIs(1));
}

TEST(LoraPlan, ASettingThatLeavesNoTargetIsNamed) {
  LoraConfig saved = on({"q_proj"});
  saved.modules_to_save = {"q_proj"};
  expect_refusal([&] { plan(saved); }, Code::kUnknownTarget, {"target_modules, q_proj", "modules_to_save"});
  LoraConfig excluded = on({"q_proj", "v_proj"});
  excluded.excluded.names = {"q_proj", "v_proj"};
  expect_refusal([&] { plan(excluded); }, Code::kUnknownTarget, {"exclude_modules takes the last", "of the 2"});
  LoraConfig layers = on({"q_proj"});
  layers.every_name_matches = false;
  layers.layers_to_transform = {9};
  expect_refusal([&] { plan(layers); }, Code::kUnknownTarget, {"layers_to_transform and layers_pattern takes"});
  layers.layers_to_transform = {0};
  layers.layers_pattern = {"blocks"};
  expect_refusal([&] { plan(layers); }, Code::kUnknownTarget, {"layers_to_transform and layers_pattern takes"});
}

TEST(LoraPlan, AllUnknownNamesAreListed) {
  expect_refusal(
      [] { plan(on({"nope1", "q_proj", "nope2"})); }, Code::kUnknownTarget, {"target_modules, nope1, nope2"});
  LoraConfig saves = on({"q_proj"});
  saves.modules_to_save = {"nope1", "norm", "nope2"};
  expect_refusal([&] { plan(saves); }, Code::kUnknownTarget, {"modules_to_save, nope1, nope2"});
}

} // namespace
} // namespace tieshard
