// What the caller says about ties: --on-tie-conflict, --untie, --tie; and groups of many names.

#include "tieshard/core/ties/tie_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/families/family.h"
#include "tieshard/core/ties/resolved_model.h"
#include "tieshard/core/ties/tie_registry.h"

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/diagnostics.h"

namespace tieshard {
namespace {

using ::testing::AllOf;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::expect_refusal;
using testing::FixtureTensor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::tiny_llama_config;

constexpr const char* kEmbed = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kShared = "shared.weight";
constexpr const char* kEncoder = "encoder.embed_tokens.weight";
constexpr const char* kDecoder = "decoder.embed_tokens.weight";
const std::string kTied = R"("tie_word_embeddings": true,)";
const std::string kT5 = R"({"model_type": "t5", "vocab_size": 6, "d_model": 4, "d_kv": 2, "d_ff": 8, "num_layers": 1,
  "num_heads": 2, "tie_word_embeddings": )";

ParameterTable rows(const std::vector<std::string>& names) {
  ParameterTable table;
  for (const std::string& name : names) {
    table.push_back({.fqn = name, .shape = {6, 4}, .dtype = DType::kF32, .identity = table.size() + 1});
  }
  return table;
}

/// A checkpoint of its own directory and its ties.
struct Resolved {
  Resolved(const std::string& config,
           const std::vector<FixtureTensor>& tensors,
           const std::vector<std::string>& names,
           const TieOptions& options = {})
      : fixture(config), checkpoint(fixture.write(tensors).open()) {
    ties = TieRegistry::of(checkpoint, rows(names), options);
  }

  std::vector<Code> codes() const {
    std::vector<Code> result;
    for (const Diagnostic& finding : ties.findings()) {
      result.push_back(finding.code);
    }
    return result;
  }

  std::string source(const std::string& canonical) const {
    const StoredTensor* const tensor = ties.source(checkpoint, canonical);
    return tensor == nullptr ? "none" : tensor->name;
  }

  CheckpointFixture fixture;
  Checkpoint checkpoint;
  TieRegistry ties;
};

const std::vector<std::string> kPair = {kEmbed, kHead};
const std::vector<std::string> kFour = {kShared, kEncoder, kDecoder, kHead};

Resolved two_that_differ(OnTieConflict on_conflict) {
  return {tiny_llama_config(kTied),
          {counting(kEmbed, {6, 4}), counting(kHead, {6, 4}, 1.0F)},
          kPair,
          {.on_conflict = on_conflict}};
}

// --- --on-tie-conflict

TEST(OnTieConflict, SaysByWhatTheNamesAreTiedAndWhereTheyDiffer) {
  const Resolved resolved = two_that_differ(OnTieConflict::kUntie);
  ASSERT_THAT(resolved.codes(), ElementsAre(Code::kTieConflict));
  const Diagnostic& warning = resolved.ties.findings()[0];
  EXPECT_THAT(warning.where, AllOf(HasSubstr(kEmbed), HasSubstr(kHead)));
  EXPECT_THAT(warning.why,
              AllOf(HasSubstr("tie_word_embeddings = true"), HasSubstr("first difference at [0, 0]: 0 and 1")));
  EXPECT_THAT(resolved.ties.groups(), IsEmpty());
}

TEST(OnTieConflict, ReadsTheCanonicalNameOrTheAliasAsTheCallerChose) {
  for (const auto& [choice, source] :
       {std::pair(OnTieConflict::kCanonical, kEmbed), std::pair(OnTieConflict::kAlias, kHead)}) {
    const Resolved resolved = two_that_differ(choice);
    ASSERT_EQ(resolved.ties.groups().size(), 1U);
    EXPECT_EQ(resolved.ties.groups()[0].source, source);
    EXPECT_EQ(resolved.source(kEmbed), source);
    ASSERT_THAT(resolved.codes(), ElementsAre(Code::kTieConflict));
    EXPECT_THAT(resolved.ties.findings()[0].why, HasSubstr(concat(source, " is read, as the caller chose")));
  }
}

TEST(OnTieConflict, RefusesWhereTheCallerWantsAnError) {
  expect_refusal(
      [] { two_that_differ(OnTieConflict::kError); }, Code::kTieConflict, {kEmbed, kHead, "tie_word_embeddings"});
}

TEST(OnTieConflict, ChangesNothingWhereCopiesAgree) {
  const Resolved resolved(tiny_llama_config(kTied),
                          {counting(kEmbed, {6, 4}), counting(kHead, {6, 4})},
                          kPair,
                          {.on_conflict = OnTieConflict::kAlias});
  EXPECT_EQ(resolved.source(kEmbed), kEmbed);
  EXPECT_THAT(resolved.codes(), ElementsAre(Code::kTieCopiesEqual));
}

TEST(OnTieConflict, SettlesATieOfTheCallerThatIsOtherwiseRefused) {
  const std::vector<FixtureTensor> stored = {counting(kEmbed, {6, 4}), counting(kHead, {6, 4}, 1.0F)};
  const TieOptions options{.explicit_ties = {{kHead, kEmbed}}, .on_conflict = OnTieConflict::kAlias};
  EXPECT_EQ(Resolved("{}", stored, kPair, options).source(kEmbed), kHead);
  expect_refusal(
      [&] { Resolved("{}", stored, kPair, {.explicit_ties = {{kHead, kEmbed}}}); }, Code::kTieConflict, {kHead});
}

TEST(OnTieConflict, GuessesNotAmongThreeOrMoreNames) {
  const std::string config = kT5 + "true}";
  for (const OnTieConflict choice : {OnTieConflict::kUntie, OnTieConflict::kError}) {
    expect_refusal(
        [&] {
          Resolved(config, {counting(kShared, {6, 4}), counting(kHead, {6, 4}, 1.0F)}, kFour, {.on_conflict = choice});
        },
        Code::kTieSourceAmbiguous,
        {kShared, kEncoder, kDecoder, kHead, "first at [0, 0]"});
  }
  for (const OnTieConflict choice : {OnTieConflict::kUntie, OnTieConflict::kCanonical, OnTieConflict::kAlias}) {
    expect_refusal( // neither is the canonical name
        [&] {
          Resolved(config, {counting(kDecoder, {6, 4}), counting(kHead, {6, 4}, 1.0F)}, kFour, {.on_conflict = choice});
        },
        Code::kTieSourceAmbiguous,
        {kShared, kEncoder, kDecoder, kHead});
  }
}

TEST(OnTieConflict, ReadsAmongManyNamesWhatLeavesNoDoubt) {
  const std::string config = kT5 + "true}";
  const std::vector<FixtureTensor> stored = {
      counting(kShared, {6, 4}), counting(kDecoder, {6, 4}, 1.0F), counting(kHead, {6, 4}, 1.0F)};
  EXPECT_EQ(Resolved(config, stored, kFour, {.on_conflict = OnTieConflict::kCanonical}).source(kShared), kShared);
  EXPECT_EQ(Resolved(config, stored, kFour, {.on_conflict = OnTieConflict::kAlias}).source(kShared), kDecoder);
  std::vector<FixtureTensor> three_values = stored;
  three_values[2] = counting(kHead, {6, 4}, 2.0F);
  expect_refusal([&] { Resolved(config, three_values, kFour, {.on_conflict = OnTieConflict::kAlias}); },
                 Code::kTieSourceAmbiguous,
                 {kHead});
}

// --- --untie

TEST(Untie, GivesANameAStorageOfItsOwnAndSaysSo) {
  const Resolved resolved(tiny_llama_config(kTied), {counting(kEmbed, {6, 4})}, kPair, {.untied = {kHead}});
  EXPECT_THAT(resolved.ties.groups(), IsEmpty());
  ASSERT_THAT(resolved.codes(), ElementsAre(Code::kUntied));
  EXPECT_EQ(resolved.ties.findings()[0].level, Level::kNote);
  EXPECT_THAT(resolved.ties.findings()[0].where, HasSubstr(kHead));
  EXPECT_THAT(resolved.ties.findings()[0].why, HasSubstr("tie_word_embeddings = true"));
}

TEST(Untie, KeepsTheOthersTogetherAlsoWithoutTheNameThatJoinedThem) {
  const Resolved resolved(kT5 + "true}", {counting(kEncoder, {6, 4})}, kFour, {.untied = {kShared}});
  ASSERT_EQ(resolved.ties.groups().size(), 1U);
  EXPECT_EQ(resolved.ties.groups()[0].canonical, kEncoder);
  EXPECT_THAT(resolved.ties.aliases(kEncoder), ElementsAre(kDecoder, kHead));
  EXPECT_EQ(resolved.ties.canonical(kShared), kShared);
}

TEST(Untie, ResolvesAConflictOfManyNames) {
  const Resolved resolved(
      kT5 + "true}", {counting(kShared, {6, 4}), counting(kHead, {6, 4}, 1.0F)}, kFour, {.untied = {kHead}});
  EXPECT_THAT(resolved.ties.aliases(kShared), ElementsAre(kEncoder, kDecoder));
  EXPECT_EQ(resolved.source(kHead), kHead);
}

TEST(Untie, NotesANameThatIsTiedToNothing) {
  const Resolved resolved("{}", {counting(kEmbed, {6, 4})}, kPair, {.untied = {kHead}});
  ASSERT_THAT(resolved.codes(), ElementsAre(Code::kUntied));
  EXPECT_THAT(resolved.ties.findings()[0].why, HasSubstr("nothing changes"));
}

TEST(Untie, RefusesWhatCannotBe) {
  const std::vector<FixtureTensor> stored = {counting(kEmbed, {6, 4})};
  expect_refusal([&] { Resolved("{}", stored, kPair, {.untied = {"head"}}); }, Code::kTieUnknownName, {"head"});
  expect_refusal([&] { Resolved("{}", stored, kPair, {.explicit_ties = {{kHead, kEmbed}}, .untied = {kHead}}); },
                 Code::kUntied,
                 {kHead, kEmbed});
  ParameterTable module = rows(kPair);
  module[1].identity = module[0].identity;
  CheckpointFixture fixture;
  fixture.write(stored);
  expect_refusal([&] { TieRegistry::of(fixture.open(), module, {.untied = {kHead}}); }, Code::kUntied, {kHead, kEmbed});
}

// --- --tie

TEST(ExplicitTies, JoinChains) {
  const Resolved resolved("{}", {counting("c", {6, 4})}, {"a", "b", "c"}, {.explicit_ties = {{"c", "b"}, {"b", "a"}}});
  EXPECT_THAT(resolved.ties.aliases("a"), ElementsAre("b", "c"));
  EXPECT_EQ(resolved.source("a"), "c");
}

TEST(ExplicitTies, RefuseCyclesAndNamesThatNoParameterHas) {
  const std::vector<FixtureTensor> stored = {counting("a", {6, 4})};
  const auto with = [&](const std::map<std::string, std::string>& map) {
    return [&stored, map] { Resolved("{}", stored, {"a", "b", "c"}, {.explicit_ties = map}); };
  };
  expect_refusal(with({{"a", "b"}, {"b", "a"}}), Code::kTieCycle, {"a -> b -> a"});
  expect_refusal(with({{"a", "b"}, {"b", "c"}, {"c", "b"}}), Code::kTieCycle, {"b -> c -> b"});
  expect_refusal(with({{"a", "a"}}), Code::kTieCycle, {"a -> a"});
  expect_refusal(with({{"a", "d"}}), Code::kTieUnknownName, {"d"});
}

TEST(ExplicitTies, RefuseUnequalShapes) {
  CheckpointFixture fixture;
  fixture.write({counting("a", {6, 4})});
  ParameterTable table = rows({"a", "b"});
  table[1].shape = {4, 6};
  expect_refusal([&] { TieRegistry::of(fixture.open(), table, {.explicit_ties = {{"b", "a"}}}); },
                 Code::kTieShapeMismatch,
                 {"[6, 4]", "[4, 6]"});
}

TEST(ExplicitTies, OfALongChainAreOneGroup) {
  std::vector<std::string> names;
  std::map<std::string, std::string> chain;
  for (int i = 0; i < 3000; ++i) {
    names.push_back("layers." + std::to_string(i));
    if (i > 0) {
      chain.emplace(names[static_cast<std::size_t>(i)], names[static_cast<std::size_t>(i) - 1]);
    }
  }
  const Resolved resolved("{}", {counting("layers.7", {6, 4})}, names, {.explicit_ties = chain});
  ASSERT_EQ(resolved.ties.groups().size(), 1U);
  EXPECT_EQ(resolved.ties.aliases("layers.0").size(), 2999U);
  EXPECT_EQ(TieRegistry::from_map(chain, rows(names)).canonical("layers.2999"), "layers.0");
}

// --- Families and files

TEST(FamilyTies, HoldAlwaysWhereTheFamilySaysSo) {
  const Resolved resolved(kT5 + "false}", {counting(kShared, {6, 4}), counting(kHead, {6, 4}, 1.0F)}, kFour);
  EXPECT_THAT(resolved.ties.aliases(kShared), ElementsAre(kEncoder, kDecoder));
  EXPECT_EQ(resolved.ties.canonical(kHead), kHead);
  EXPECT_THAT(resolved.codes(), IsEmpty());
  EXPECT_THAT(resolved.ties.groups()[0].aliases[0].reasons[0].text, HasSubstr("t5: always"));
}

TEST(ModuleTies, OfLayersAndBiasesAreGroupsOfTheirOwn) {
  ParameterTable table = rows({"layers.0.w", "layers.0.b", "layers.1.w", "layers.1.b", "layers.2.w", "layers.2.b"});
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i].identity = i % 2;
  }
  const TieRegistry ties = TieRegistry::of(table);
  EXPECT_THAT(ties.aliases("layers.0.w"), ElementsAre("layers.1.w", "layers.2.w"));
  EXPECT_THAT(ties.aliases("layers.0.b"), ElementsAre("layers.1.b", "layers.2.b"));
}

// --- The whole way in

TEST(ResolveModel, RenamesBeforeItResolvesTies) {
  CheckpointFixture fixture(tiny_llama_config());
  std::vector<FixtureTensor> stored;
  const HfConfig config = HfConfig::parse(tiny_llama_config(), "config.json");
  for (const ParameterInfo& info : require_family(config).table(config)) {
    if (info.fqn != kHead) {
      stored.push_back(counting("module." + info.fqn, info.shape));
    }
  }
  fixture.write(stored, {{concat("module.", kHead), concat("module.", kEmbed)}}); // metadata has the file's names
  const ResolvedModel model = resolve_model(fixture.path());
  EXPECT_THAT(model.ties.aliases(kEmbed), ElementsAre(kHead));
  ASSERT_NE(model.ties.source(model.checkpoint, kEmbed), nullptr);
  EXPECT_EQ(model.ties.source(model.checkpoint, kEmbed)->stored_name, concat("module.", kEmbed));
  std::vector<Code> codes;
  for (const Diagnostic& finding : model.findings) {
    codes.push_back(finding.code);
  }
  EXPECT_THAT(codes, ElementsAre(Code::kWrapperPrefix, Code::kTieFlagDefault, Code::kTieFromMetadata));
  expect_refusal([&] { resolve_model(fixture.path(), {.rename = false}); }, Code::kWrapperPrefix, {"module."});
}

TEST(ResolveModel, TakesANestedFlagForThePartThatHasTheHead) {
  CheckpointFixture fixture(R"({"model_type": "quokka_vl",
    "architectures": ["QuokkaVLForConditionalGeneration"], "text_config": {"model_type": "llama",
    "tie_word_embeddings": true}})");
  fixture.write(
      {counting("language_model.model.embed_tokens.weight", {6, 4}), counting("vision.patch.weight", {4, 4})});
  const ResolvedModel model = resolve_model(fixture.path());
  EXPECT_EQ(model.family, nullptr);
  EXPECT_EQ(model.ties.canonical("language_model.lm_head.weight"), "language_model.model.embed_tokens.weight");
  ASSERT_EQ(model.findings.size(), 2U);
  EXPECT_EQ(model.findings[0].code, Code::kUnknownArchitecture);
  EXPECT_THAT(model.findings[0].why, HasSubstr("quokka_vl"));
  EXPECT_EQ(model.findings[1].code, Code::kTieFlagNested);
  EXPECT_THAT(model.findings[1].where, HasSubstr("text_config.tie_word_embeddings"));
}

// --- Encoder and decoder of an architecture that is not known

/// What becomes of the embeddings that BART has: the group's names, and the codes of what is said.
struct OfNames {
  std::vector<std::string> aliases;
  std::vector<Code> codes;
};

OfNames resolve_names(const std::string& flag, const std::vector<FixtureTensor>& stored) {
  CheckpointFixture fixture("{" + flag + R"("model_type": "quokka", "architectures": ["QuokkaModel"]})");
  fixture.write(stored);
  const ResolvedModel model = resolve_model(fixture.path());
  OfNames result{.aliases = model.ties.aliases(kShared), .codes = {}};
  for (const Diagnostic& finding : model.findings) {
    result.codes.push_back(finding.code);
  }
  return result;
}

std::vector<FixtureTensor> embeddings(float encoder, float decoder) {
  return {counting(kShared, {6, 4}), counting(kEncoder, {6, 4}, encoder), counting(kDecoder, {6, 4}, decoder)};
}

TEST(ResolveModel, TiesEqualEmbeddingsOfAnEncoderAndADecoder) {
  const OfNames tied = resolve_names(R"("tie_word_embeddings": true, )", embeddings(0, 0));
  EXPECT_THAT(tied.aliases, ElementsAre(kEncoder, kDecoder));
  EXPECT_THAT(tied.codes, ElementsAre(Code::kUnknownArchitecture, Code::kTieCopiesEqual, Code::kTieCopiesEqual));
  for (const char* flag : {"", R"("tie_word_embeddings": false, )"}) { // about the head, where one is called shared
    const OfNames by_names = resolve_names(flag, embeddings(0, 0));
    EXPECT_THAT(by_names.aliases, ElementsAre(kEncoder, kDecoder));
    EXPECT_THAT(
        by_names.codes,
        ElementsAre(Code::kUnknownArchitecture, Code::kTieFlagDefault, Code::kTieCopiesEqual, Code::kTieCopiesEqual));
  }
}

TEST(ResolveModel, GuessesNotAmongThreeEmbeddingsThatDiffer) {
  for (const char* flag : {"", R"("tie_word_embeddings": true, )"}) {
    expect_refusal([&] { resolve_names(flag, embeddings(0, 1)); }, Code::kTieSourceAmbiguous, {kShared, kDecoder});
  }
  EXPECT_THAT(resolve_names(R"("tie_word_embeddings": false, )", embeddings(1, 2)).codes,
              ElementsAre(Code::kUnknownArchitecture)); // three weights, as the flag says
}

TEST(ResolveModel, HoldsTwoEmbeddingsThatDifferApart) {
  const OfNames two = resolve_names("", {counting(kShared, {6, 4}), counting(kEncoder, {6, 4}, 1.0F)});
  EXPECT_THAT(two.aliases, IsEmpty());
  EXPECT_THAT(two.codes, ElementsAre(Code::kUnknownArchitecture, Code::kTieFlagDefault, Code::kTieConflict));
}

TEST(ResolveModel, MakesNoNamesUpForASharedEmbeddingAlone) {
  CheckpointFixture fixture(
      R"({"model_type": "quokka", "architectures": ["QuokkaModel"], "tie_word_embeddings": true})");
  fixture.write({counting(kShared, {6, 4}), counting("encoder.norm.weight", {4})});
  const ResolvedModel model = resolve_model(fixture.path());
  EXPECT_EQ(model.table.size(), 2U);
  EXPECT_THAT(model.findings[0].why, HasSubstr("only shared.weight is stored"));
}

// --- What is said names the flag that is the cause

TEST(ExplicitTies, AreNamedByTheirFlagWhereCopiesDiffer) {
  expect_refusal(
      [] {
        Resolved(
            "{}", {counting("a", {6, 4}), counting("b", {6, 4}, 1.0F)}, {"a", "b"}, {.explicit_ties = {{"b", "a"}}});
      },
      Code::kTieConflict,
      {"leave --tie b=a out"});
  expect_refusal(
      [] {
        Resolved("{}",
                 {counting("a", {6, 4}), counting("b", {6, 4}, 1.0F), counting("c", {6, 4})},
                 {"a", "b", "c"},
                 {.explicit_ties = {{"b", "a"}, {"c", "a"}}});
      },
      Code::kTieSourceAmbiguous,
      {"leave --tie b=a and --tie c=a out"});
}

// --- FP8 copies are what their scales make of them

TEST(Fp8Copies, AreEqualWithTheirScalesOnly) {
  const auto fp8 = [](const std::string& name) { return testing::zeros(name, DType::kF8E4M3, {6, 4}); };
  const auto resolve = [&](std::vector<FixtureTensor> scales) {
    scales.push_back(fp8(kEmbed));
    scales.push_back(fp8(kHead));
    return Resolved(tiny_llama_config(kTied), scales, kPair);
  };
  const std::string embed_scale = concat(kEmbed, "_scale");
  const std::string head_scale = concat(kHead, "_scale");
  EXPECT_THAT(resolve({counting(embed_scale, {1}, 2.0F), counting(head_scale, {1}, 2.0F)}).codes(),
              ElementsAre(Code::kTieCopiesEqual));
  EXPECT_THAT(resolve({}).codes(), ElementsAre(Code::kTieCopiesEqual));
  const Resolved differ = resolve({counting(embed_scale, {1}, 2.0F), counting(head_scale, {1}, 3.0F)});
  ASSERT_THAT(differ.codes(), ElementsAre(Code::kTieConflict));
  EXPECT_THAT(differ.ties.findings()[0].why, AllOf(HasSubstr("_scale = 2"), HasSubstr("_scale = 3")));
  EXPECT_THAT(resolve({counting(embed_scale, {1})}).codes(), ElementsAre(Code::kTieConflict));
  EXPECT_THAT(resolve({counting(embed_scale, {1}), counting(head_scale, {1, 1})}).codes(),
              ElementsAre(Code::kTieConflict));
}

} // namespace
} // namespace tieshard
