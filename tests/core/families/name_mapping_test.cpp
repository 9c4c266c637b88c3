#include "tieshard/core/families/name_mapping.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/raised.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using testing::CheckpointFixture;
using testing::counting;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::raised;
using ::testing::SizeIs;

const std::string kTiny = R"("vocab_size": 6, "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 2,
  "num_attention_heads": 2, "tie_word_embeddings": false})";
const std::string kLlama = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], )" + kTiny;
const std::string kGpt2 = R"({"model_type": "gpt2", "vocab_size": 6, "n_positions": 8, "n_embd": 4, "n_layer": 2,
  "n_head": 2})";

using Rename = std::function<std::string(const std::string&)>;

/// All tensors of the model under other names; an empty name leaves one out.
std::vector<FixtureTensor> tensors_of(const std::string& config, const Rename& rename) {
  const HfConfig parsed = HfConfig::parse(config, "config.json");
  std::vector<FixtureTensor> tensors;
  for (const ParameterInfo& info : require_family(parsed).table(parsed)) {
    if (const std::string name = rename(info.fqn); !name.empty()) {
      tensors.push_back(counting(name, info.shape));
    }
  }
  return tensors;
}

NameMapping map_names(const std::string& config, const std::vector<FixtureTensor>& tensors, bool rename = true) {
  CheckpointFixture fixture(config);
  fixture.write(tensors);
  const Checkpoint checkpoint = fixture.open();
  const Family& family = require_family(checkpoint.config());
  return find_name_mapping(checkpoint, family.table(checkpoint.config()), family, {.rename = rename});
}

NameMapping map_llama(const Rename& rename) {
  return map_names(kLlama, tensors_of(kLlama, rename));
}

std::optional<Diagnostic> refusal(const std::vector<FixtureTensor>& tensors, const std::string& config = kLlama) {
  return raised<InputError>([&] { map_names(config, tensors); });
}

std::vector<FixtureTensor> operator+(std::vector<FixtureTensor> first, const std::vector<FixtureTensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  if (const std::size_t at = text.find(what); at != std::string::npos) {
    text.replace(at, what.size(), with);
  }
  return text;
}

/// Every parameter of the model is the new name of one tensor.
void expect_whole_model(const NameMapping& mapping, const Rename& rename, const std::string& config = kLlama) {
  const HfConfig parsed = HfConfig::parse(config, "config.json");
  for (const ParameterInfo& info : require_family(parsed).table(parsed)) {
    const std::string stored = rename(info.fqn);
    if (stored.empty() || stored == info.fqn) {
      continue;
    }
    const auto found = mapping.names.find(stored);
    ASSERT_NE(found, mapping.names.end()) << stored;
    EXPECT_EQ(found->second, info.fqn);
  }
}

void expect_one_finding(const NameMapping& mapping, Code code, const std::string& part) {
  ASSERT_THAT(mapping.findings, SizeIs(1));
  EXPECT_EQ(id(mapping.findings[0].code), id(code));
  EXPECT_EQ(mapping.findings[0].level, Level::kWarning);
  EXPECT_THAT(mapping.findings[0].why, HasSubstr(part));
  EXPECT_THAT(mapping.findings[0].why, HasSubstr(" -> "));
}

TEST(NameMapping, LeavesTheModelsOwnNamesAlone) {
  const NameMapping mapping = map_llama([](const std::string& name) { return name; });
  EXPECT_THAT(mapping.names, IsEmpty());
  EXPECT_THAT(mapping.findings, IsEmpty());
}

TEST(NameMapping, LeavesTensorsAloneThatNoParameterIsMissingFor) {
  const NameMapping mapping = map_names(
      kLlama, tensors_of(kLlama, [](const auto& name) { return name; }) + tensors_of(kLlama, [](const auto& name) {
                return "average." + name;
              }) + std::vector<FixtureTensor>{counting("step", {1})});
  EXPECT_THAT(mapping.names, IsEmpty());
}

TEST(NameMapping, TakesTheWrapperOfTheWholeModelOut) {
  for (const std::string prefix : {"module.",
                                   "_orig_mod.",
                                   "module._orig_mod.",
                                   "_fsdp_wrapped_module.",
                                   "_forward_module.",
                                   "base_model.model.",
                                   "foo.bar.",
                                   "0."}) {
    const Rename rename = [&prefix](const std::string& name) { return prefix + name; };
    const NameMapping mapping = map_llama(rename);
    expect_whole_model(mapping, rename);
    expect_one_finding(mapping, Code::kWrapperPrefix, prefix + " is taken out");
    EXPECT_THAT(mapping.findings[0].why, HasSubstr("21 tensors"));
  }
}

TEST(NameMapping, TakesWrappersOfPartsOut) {
  const std::vector<std::pair<std::string, std::string>> wraps = {
      {"layers.0.", "layers.0._orig_mod."},
      {"model.", "model._fsdp_wrapped_module."},
      {"self_attn.", "self_attn._checkpoint_wrapped_module.module."},
      {"layers.1.mlp.", "layers.1.mlp._unheard_of."}, // found by its place alone
      {"layers.", "layers._a._b."},
  };
  for (const auto& [what, with] : wraps) {
    const Rename rename = [&](const std::string& name) { return replaced(name, what, with); };
    const NameMapping mapping = map_llama(rename);
    expect_whole_model(mapping, rename);
    expect_one_finding(mapping, Code::kWrapperPrefix, with.substr(what.size()));
  }
}

TEST(NameMapping, TakesSeveralKindsOfWrappersOutAtOnce) {
  const Rename rename = [](const std::string& name) {
    return "module." + replaced(replaced(name, "layers.0.", "layers.0._orig_mod."), "mlp.", "mlp._unheard_of.");
  };
  const NameMapping mapping = map_llama(rename);
  expect_whole_model(mapping, rename);
  ASSERT_THAT(mapping.findings, SizeIs(2));
  EXPECT_THAT(mapping.findings[0].why, AllOf(HasSubstr("module."), HasSubstr("_orig_mod.")));
  EXPECT_THAT(mapping.findings[1].why, HasSubstr("_unheard_of."));
}

TEST(NameMapping, PutsTheBaseModelsPrefixInFront) {
  const Rename rename = [](const std::string& name) { return replaced(name, "model.", ""); };
  const NameMapping mapping = map_llama(rename);
  expect_whole_model(mapping, rename);
  EXPECT_FALSE(mapping.names.contains("lm_head.weight"));
  expect_one_finding(mapping, Code::kBaseModelPrefix, "model. is put in front");
}

TEST(NameMapping, TakesABaseModelsPrefixOutThatStandsTwice) {
  const Rename rename = [](const std::string& name) { return "model." + name; };
  const NameMapping mapping = map_llama(rename);
  expect_whole_model(mapping, rename);
  expect_one_finding(mapping, Code::kBaseModelPrefix, "model. is taken out");
}

TEST(NameMapping, ReplacesAnotherNameOfTheBaseModel) {
  const Rename rename = [](const std::string& name) { return replaced(name, "model.", "backbone."); };
  const NameMapping mapping = map_llama(rename);
  expect_whole_model(mapping, rename);
  expect_one_finding(mapping, Code::kBaseModelPrefix, "backbone. is replaced with model.");
}

TEST(NameMapping, FindsAWrapperAndAMissingPrefixTogether) {
  const Rename rename = [](const std::string& name) { return "module." + replaced(name, "model.", ""); };
  const NameMapping mapping = map_llama(rename);
  expect_whole_model(mapping, rename);
  ASSERT_THAT(mapping.findings, SizeIs(2));
  EXPECT_EQ(mapping.findings[0].code, Code::kWrapperPrefix);
  EXPECT_EQ(mapping.findings[1].code, Code::kBaseModelPrefix);
}

TEST(NameMapping, LetsTheHeadStandOutsideOfTheForeignPrefix) {
  const Rename rename = [](const std::string& name) {
    return name == "lm_head.weight" ? name : "language_model." + name;
  };
  expect_whole_model(map_llama(rename), rename);
}

TEST(NameMapping, RenamesOldGpt2FilesTogetherWithTheirMasks) {
  const Rename rename = [](const std::string& name) {
    return name == "lm_head.weight" ? "" : replaced(name, "transformer.", "");
  };
  const NameMapping mapping =
      map_names(kGpt2,
                tensors_of(kGpt2, rename) +
                    std::vector<FixtureTensor>{counting("h.0.attn.bias", {1, 1, 8, 8}), counting("step", {1})});
  expect_whole_model(mapping, rename, kGpt2);
  EXPECT_EQ(mapping.names.at("h.0.attn.bias"), "transformer.h.0.attn.bias");
  EXPECT_FALSE(mapping.names.contains("step"));
}

TEST(NameMapping, TakesQuantisedBlocksAndScalesAlong) {
  const std::string config = R"({"model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1,
    "num_key_value_heads": 1, "head_dim": 2, )" +
                             kTiny;
  std::vector<FixtureTensor> tensors = tensors_of(config, [](const std::string& name) { return "module." + name; });
  std::erase_if(tensors, [](const FixtureTensor& each) { return each.name.ends_with("down_proj"); });
  const std::string experts = "model.layers.0.mlp.experts.down_proj";
  tensors.push_back({"module." + experts + "_blocks", DType::kU8, {1}, {std::byte{0}}});
  tensors.push_back({"module." + experts + "_scales", DType::kU8, {1}, {std::byte{0}}});
  tensors.push_back(counting("module.model.layers.0.self_attn.q_proj.weight_scale_inv", {1}));
  const NameMapping mapping = map_names(config, tensors);
  EXPECT_EQ(mapping.names.at("module." + experts + "_blocks"), experts + "_blocks");
  EXPECT_EQ(mapping.names.at("module." + experts + "_scales"), experts + "_scales");
  EXPECT_TRUE(mapping.names.contains("module.model.layers.0.self_attn.q_proj.weight_scale_inv"));
}

TEST(NameMapping, DoesNothingWhereNothingMaps) {
  const std::vector<Rename> strange = {
      [](const std::string& name) { return replaced(name, "layers.1.", "layers.7."); }, // another place of the model
      [](const std::string& name) { return replaced(name, "mlp.", "mlp.experts.0."); }, // one expert of several
      [](const std::string& name) { return replaced(name, "_proj", "_projection"); },
      [](const std::string& name) { return name.starts_with("model.layers.1.") ? "" : name; },
  };
  for (const Rename& rename : strange) {
    EXPECT_THAT(map_llama(rename).names, IsEmpty()) << rename("model.layers.1.mlp.up_proj.weight");
  }
}

TEST(NameMapping, TakesOneBranchOfAMixtureOfExpertsForNoWrapper) {
  const Rename shared = [](const std::string& name) { return replaced(name, "mlp.", "mlp.shared."); };
  std::vector<FixtureTensor> tensors = tensors_of(kLlama, shared);
  tensors.push_back(counting("model.layers.0.mlp.experts.0.up_proj.weight", {8, 4}));
  tensors.push_back(counting("model.layers.1.mlp.experts.0.up_proj.weight", {8, 4}));
  EXPECT_THAT(map_names(kLlama, tensors).names, IsEmpty());
}

TEST(NameMapping, TakesTensorsOfOtherShapesForOthers) {
  std::vector<FixtureTensor> tensors = tensors_of(kLlama, [](const std::string& name) { return "vision." + name; });
  for (FixtureTensor& tensor : tensors) {
    tensor = counting(tensor.name, {3});
  }
  EXPECT_THAT(map_names(kLlama, tensors).names, IsEmpty());
}

TEST(NameMapping, RefusesTwoSavesThatAreMixed) {
  const Rename same = [](const std::string& name) { return name; };
  const auto with = [](const std::string& prefix) {
    return [prefix](const std::string& name) { return prefix + name; };
  };
  const auto only = [](const std::string& layer, const Rename& rename) {
    return
        [layer, rename](const std::string& name) { return name.find(layer) == std::string::npos ? "" : rename(name); };
  };
  const auto but = [](const std::string& layer, const Rename& rename) {
    return
        [layer, rename](const std::string& name) { return name.find(layer) == std::string::npos ? rename(name) : ""; };
  };
  const std::vector<std::pair<Rename, Rename>> mixtures = {
      {same, with("module.")},                                      // both whole
      {with("_orig_mod."), with("module.")},                        // two wrappers, both whole
      {same, only("layers.1.", with("module."))},                   // one layer twice
      {but("layers.1.", same), only("layers.1.", with("module."))}, // half with, half without
      {but("layers.1.", same), only("layers.1.", with("foo."))},    // the same with a prefix of no wrapper
      {but("layers.1.", with("foo.")), only("layers.1.", with("bar."))},
      {with("foo."), with("bar.")},
      {but("layers.1.", same), only("layers.1.", [](const std::string& name) { return replaced(name, "model.", ""); })},
  };
  for (std::size_t i = 0; i < mixtures.size(); ++i) {
    const auto refused = refusal(tensors_of(kLlama, mixtures[i].first) + tensors_of(kLlama, mixtures[i].second));
    ASSERT_TRUE(refused.has_value()) << i;
    EXPECT_EQ(id(refused->code), id(Code::kMixedPrefixes)) << i;
    EXPECT_THAT(refused->where, HasSubstr(" and ")) << i;
    EXPECT_FALSE(refused->why.empty() || refused->fix.empty()) << i;
  }
}

TEST(NameMapping, RefusesAModuleOfWhichOnlyAPartIsWrapped) {
  const auto refused = refusal(tensors_of(kLlama, [](const std::string& name) {
    return name.find("up_proj") == std::string::npos ? name : replaced(name, "mlp.", "mlp._orig_mod.");
  }));
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kMixedPrefixes);
  EXPECT_THAT(refused->why, AllOf(HasSubstr("model.layers."), HasSubstr("_orig_mod.")));
  EXPECT_THAT(refused->where, HasSubstr("_orig_mod.")); // names as they are in the files
}

TEST(NameMapping, IsRefusedWithItsOwnCodeWhereRenamingIsSwitchedOff) {
  const auto refused = raised<InputError>(
      [] { map_names(kLlama, tensors_of(kLlama, [](const std::string& name) { return "module." + name; }), false); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kWrapperPrefix);
  EXPECT_EQ(refused->level, Level::kError);
  EXPECT_THAT(refused->fix, HasSubstr("--no-rename"));
  EXPECT_NO_THROW(map_names(kLlama, tensors_of(kLlama, [](const std::string& name) { return name; }), false));
}

TEST(NameMapping, CountsATiedNameThatIsNotStoredForNoGap) {
  const std::string tied = replaced(kLlama, "false}", "true}");
  const Rename rename = [](const std::string& name) { return name == "lm_head.weight" ? "" : "module." + name; };
  expect_whole_model(map_names(tied, tensors_of(tied, rename)), rename, tied);
}

TEST(NameMapping, TakesNoPrefixThatDoesNotEndAtADot) {
  for (const std::string prefix : {"x", "my_"}) {
    const NameMapping mapping = map_llama([&prefix](const std::string& name) { return prefix + name; });
    EXPECT_THAT(mapping.names, IsEmpty()) << prefix;
  }
}

} // namespace
} // namespace tieshard
