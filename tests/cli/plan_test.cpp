#include "tieshard/cli/plan.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/families/known_families.h"

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

using testing::Answer;
using testing::CheckpointFixture;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run;
using testing::tied_config;
using testing::tiny_llama_tensors;
using testing::untied_config;

class PlanVerb : public ::testing::Test {
 protected:
  PlanVerb() : model_(tied_config()) {
    model_.write(tiny_llama_tensors());
  }

  Answer plan(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"plan", model_.path()});
    return run(flags);
  }

  CheckpointFixture model_;
};

TEST_F(PlanVerb, ShowsUnitsRanksAndTheTiedWeightsDim) {
  const Answer answer = plan({"--ranks", "2"});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out,
              HasSubstr("LlamaForCausalLM, 196 parameters in 11 tensors, 1 tie group; 2 ranks, shard dim: last"));
  EXPECT_THAT(answer.out, HasSubstr("\n(root) "));
  EXPECT_THAT(answer.out, HasSubstr("\nmodel.layers.0 "));
  // 98 elements a rank: 392 B of parameters and of gradients, 784 B of AdamW, 392 B read.
  EXPECT_THAT(
      answer.out,
      HasSubstr(
          "\n0-1              98             392 B            392 B            784 B  1.5 KiB            392 B\n"));
  EXPECT_THAT(answer.out,
              HasSubstr("tied        model.embed_tokens.weight = lm_head.weight  dim 1 (last) of [6, 4], unit (root)"));
}

TEST_F(PlanVerb, CountsEveryElementOnceOverTheRanks) {
  for (const char* ranks : {"1", "2", "3", "5", "9"}) {
    for (const char* dim : {"last", "first"}) {
      const auto document = plan({"--ranks", ranks, "--shard-dim", dim, "--json"}).json();
      std::int64_t elements = 0;
      std::int64_t read = 0;
      for (const auto& rank : document["per_rank"]) {
        elements += rank["elements"].get<std::int64_t>();
        read += rank["read_bytes"].get<std::int64_t>();
      }
      EXPECT_EQ(document["per_rank"].size(), std::stoul(ranks));
      EXPECT_EQ(elements, 196) << ranks << " ranks, " << dim;
      EXPECT_EQ(read, 784) << ranks << " ranks, " << dim;
    }
  }
}

TEST_F(PlanVerb, NamesUnevenAndEmptyParts) {
  const auto document = plan({"--ranks", "3", "--json"}).json();
  // 4 over 3 ranks is 2, 2, 0; 8 over 3 is 3, 3, 2.
  EXPECT_EQ(document["uneven"], (std::vector<std::string>{"model.layers.0.mlp.down_proj.weight"}));
  EXPECT_EQ(document["empty"].size(), 10U);
  EXPECT_THAT(plan({"--ranks", "3"}).out, HasSubstr("dim 1 of [4, 8] in 3, 3, 2\n"));
}

TEST_F(PlanVerb, NeverListsAnAliasAsAParameter) {
  const auto document = plan({"--ranks", "2", "--json"}).json();
  for (const auto& parameter : document["parameters"]) {
    EXPECT_NE(parameter["name"], "lm_head.weight");
  }
  EXPECT_EQ(document["parameters"][0]["aliases"], (std::vector<std::string>{"lm_head.weight"}));
}

TEST_F(PlanVerb, CountsMemoryInTheParameterDtype) {
  const auto full = plan({"--ranks", "2", "--json"}).json()["per_rank"][0];
  const auto half = plan({"--ranks", "2", "--param-dtype", "bfloat16", "--json"}).json()["per_rank"][0];
  EXPECT_EQ(full["parameter_bytes"], 392);
  EXPECT_EQ(half["parameter_bytes"], 196);
  EXPECT_EQ(half["adamw_bytes"], 784); // moments in float32
  EXPECT_THAT(plan({"--ranks", "2", "--param-dtype", "bfloat16"}).out, HasSubstr("gradients (BF16)  AdamW (2 x F32)"));
  EXPECT_EQ(half["read_bytes"], 392); // the files stay as they are
}

TEST_F(PlanVerb, CountsWhatAStepExchanges) {
  // The root unit has 28 elements, the layer 168. On 2 ranks each receives the other half, the layer's parameters
  // twice.
  const auto two = plan({"--ranks", "2", "--json"}).json()["step"];
  EXPECT_EQ(two["all_gather_bytes"], 4 * (14 + 2 * 84));
  EXPECT_EQ(two["reduce_scatter_bytes"], 4 * (14 + 84));
  EXPECT_EQ(two["in_flight_bytes"], 4 * (28 + 168));
  // On 3 ranks parts of 2 of 4 and of 3 of 8 come from each of the two others: 14 of the root, 68 + 12 of the layer.
  const auto three = plan({"--ranks", "3", "--json"}).json()["step"];
  EXPECT_EQ(three["reduce_scatter_bytes"], 4 * 2 * (14 + 68 + 12));
  const auto one = plan({"--ranks", "1", "--json"}).json()["step"];
  EXPECT_EQ(one["all_gather_bytes"], 0);
  EXPECT_EQ(one["reduce_scatter_bytes"], 0);
}

TEST_F(PlanVerb, SaysHowMuchOfTheExchangeIsPadding) {
  EXPECT_THAT(plan({"--ranks", "2"}).out, Not(HasSubstr("padding")));
  EXPECT_THAT(plan({"--ranks", "3"}).out, Not(HasSubstr("padding")));
  EXPECT_THAT(plan({"--ranks", "64"}).out, HasSubstr("of it is padding"));
}

TEST_F(PlanVerb, SaysHowLongTheExchangeTakesAtABandwidth) {
  EXPECT_THAT(plan({"--ranks", "2", "--bandwidth", "1kB/s"}).out, HasSubstr("1.12 s together at 1000 B/s"));
  const auto step = plan({"--ranks", "2", "--bandwidth", "1kB", "--json"}).json()["step"];
  EXPECT_DOUBLE_EQ(step["seconds"].get<double>(), 4 * (14 + 2 * 84 + 14 + 84) / 1000.0);
  EXPECT_TRUE(plan({"--ranks", "2", "--json"}).json()["step"]["seconds"].is_null());
  EXPECT_EQ(plan({"--ranks", "2", "--replicas", "2", "--json"}).json()["step"]["all_reduce_bytes"], 4 * 98);
  EXPECT_EQ(plan({"--ranks", "2", "--bandwidth", "0"}).status, 2);
  EXPECT_EQ(plan({"--ranks", "2", "--bandwidth", "fast"}).status, 2);
  EXPECT_EQ(plan({"--ranks", "2", "--bandwidth", "25"}).status, 2);
  for (const char* bits : {"8kb/s", "8kbit/s", "8kbps", "8kbits"}) {
    EXPECT_THAT(plan({"--ranks", "2", "--bandwidth", bits}).out, HasSubstr("together at 1000 B/s")) << bits;
  }
  EXPECT_EQ(plan({"--ranks", "2", "--device-memory", "0"}).status, 2);
  EXPECT_THAT(plan({"--ranks", "2", "--device-memory", "24G"}).err, HasSubstr("write --device-memory 24GiB"));
}

TEST_F(PlanVerb, SaysWhetherItFitsAndWhatWould) {
  EXPECT_THAT(plan({"--ranks", "2", "--device-memory", "1GiB"}).out, HasSubstr("\nfits: "));
  const Answer no = plan({"--ranks", "2", "--device-memory", "100MiB"});
  EXPECT_EQ(no.status, 0);
  EXPECT_THAT(no.out, HasSubstr("does not fit: "));
  EXPECT_THAT(no.out, HasSubstr(" too much\n"));
  EXPECT_THAT(no.out, HasSubstr("use a smaller --batch or --seq"));
  const auto fit = plan({"--ranks", "2", "--device-memory", "1GiB", "--json"}).json()["fit"];
  EXPECT_EQ(fit["fits"], true);
  EXPECT_EQ(fit["device_bytes"], 1 << 30);
  // Half of the activations is what the smallest change saves.
  const std::vector<std::string> large{"--ranks", "2", "--batch", "512", "--seq", "4096"};
  auto flags = large;
  flags.insert(flags.end(), {"--json"});
  const auto peak = plan(flags).json()["training"]["peak_bytes"].get<std::uint64_t>();
  flags = large;
  flags.insert(flags.end(), {"--device-memory", std::to_string(peak - 1)});
  EXPECT_THAT(plan(flags).out, HasSubstr("fits with  --shard-dim last --param-dtype float32 --compute-dtype bfloat16"));
}

TEST_F(PlanVerb, ComparesTheChoicesWithFlagsToCopy) {
  const Answer answer = plan({"--ranks", "2", "--compare", "--bandwidth", "1GB/s", "--device-memory", "1GiB"});
  EXPECT_THAT(answer.out,
              HasSubstr("--shard-dim first --param-dtype bfloat16 --compute-dtype bfloat16 "
                        "--reshard-after-forward false\n"));
  EXPECT_THAT(answer.out, HasSubstr(", fits"));
  const auto choices = plan({"--ranks", "2", "--compare", "--json"}).json()["choices"];
  ASSERT_EQ(choices.size(), 12U);
  EXPECT_TRUE(choices[0]["fits"].is_null());
  EXPECT_TRUE(choices[0]["seconds"].is_null());
  EXPECT_EQ(choices[0]["state_bytes"], 98 * 16);
  // A choice that is none of the twelve has a row of its own, the first.
  const auto other = plan({"--ranks", "2", "--param-dtype", "float64", "--compare", "--json"}).json()["choices"];
  ASSERT_EQ(other.size(), 13U);
  EXPECT_EQ(other[0]["param_dtype"], "F64");
  // The flags of a row make the plan of that row.
  std::istringstream words(choices[5]["flags"].get<std::string>());
  std::vector<std::string> copied{"--ranks", "2", "--json"};
  for (std::string word; words >> word;) {
    copied.push_back(word);
  }
  EXPECT_EQ(plan(copied).json()["training"]["peak_bytes"], choices[5]["peak_bytes"]);
}

TEST_F(PlanVerb, CountsWhatEachHostReads) {
  // On 3 ranks of 4 columns each: 2, 2, 0; of 8: 3, 3, 2. All is stored in F32.
  const auto document = plan({"--ranks", "3", "--ranks-per-host", "2", "--json"}).json();
  const auto read = [&document](int rank) { return document["per_rank"][rank]["read_bytes"].get<int>(); };
  ASSERT_EQ(document["per_host"].size(), 2U);
  EXPECT_EQ(document["per_host"][0]["ranks"], 2);
  EXPECT_EQ(document["per_host"][0]["read_bytes"], read(0) + read(1));
  EXPECT_EQ(document["per_host"][1]["ranks"], 1);
  EXPECT_EQ(document["per_host"][1]["read_bytes"], read(2));
  EXPECT_EQ(plan({"--ranks", "3", "--json"}).json()["per_host"][0]["read_bytes"], 784);
  EXPECT_THAT(plan({"--ranks", "3"}).out, HasSubstr("\nhost  ranks  read from files\n0         3            784 B\n"));
  EXPECT_THAT(plan({"--ranks", "4", "--ranks-per-host", "2"}).out,
              HasSubstr("\neach host  ranks  read from files\n0-1            2            392 B\n"));
}

TEST_F(PlanVerb, PredictsTheMemoryOfTrainingTermByTerm) {
  const Answer answer = plan({"--ranks", "2", "--seq", "3", "--batch", "2"});
  EXPECT_THAT(answer.out, HasSubstr("\npeak while training (2 x 3 tokens, F32 compute)  largest rank\n"));
  EXPECT_THAT(answer.out, HasSubstr("\nAdamW's moments of the shards "));
  EXPECT_THAT(answer.out, HasSubstr("\nresident at most "));
  const auto training = plan({"--ranks", "2", "--seq", "3", "--batch", "2", "--json"}).json()["training"];
  EXPECT_EQ(training["seq"], 3);
  EXPECT_EQ(training["batch"], 2);
  EXPECT_EQ(training["compute_dtype"], "F32");
  EXPECT_EQ(training["reshard_after_forward"], true);
  EXPECT_EQ(training["terms"]["shards"], 392);
  EXPECT_EQ(training["terms"]["moments"], 784);
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : training["terms"].items()) {
    sum += bytes.get<std::uint64_t>();
  }
  EXPECT_EQ(training["terms"].size(), 9U);
  EXPECT_EQ(training["peak_bytes"], sum);
}

TEST_F(PlanVerb, PredictsForTheStepThatItIsTold) {
  const auto terms = [this](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--ranks", "1", "--json"});
    return plan(flags).json()["training"]["terms"];
  };
  EXPECT_EQ(terms({})["whole_parameters"], 0);
  EXPECT_GT(terms({"--compute-dtype", "bfloat16"})["whole_parameters"], 0);
  EXPECT_EQ(terms({"--param-dtype", "bfloat16"})["whole_parameters"], 0); // which the compute dtype follows
  EXPECT_GT(terms({"--seq", "1024"})["activations"], terms({})["activations"]);
  EXPECT_EQ(
      plan({"--ranks", "2", "--reshard-after-forward", "false", "--json"}).json()["training"]["reshard_after_forward"],
      false);
}

TEST(PlanVerbOfOtherFamilies, SaysThatItDoesNotPredictTheMemoryOfTraining) {
  CheckpointFixture model(R"({"model_type": "nobody_knows", "architectures": ["NobodyForCausalLM"]})");
  model.write({testing::counting("a.weight", {4, 4})});
  const auto training = run({"plan", model.path(), "--ranks", "2", "--json"}).json()["training"];
  EXPECT_TRUE(training["peak_bytes"].is_null());
  EXPECT_TRUE(training["terms"].is_null());
  EXPECT_THAT(training["why"].get<std::string>(), HasSubstr("NobodyForCausalLM"));
  EXPECT_THAT(
      run({"plan", model.path(), "--ranks", "2"}).out,
      HasSubstr("training  no prediction of a rank's peak: no formula says what a forward of NobodyForCausalLM"));
}

/// Two experts of 4 x 6 and 2 x 4 x 6 in the one layer, and what else a Mixtral has.
constexpr const char* kMixtral = R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
  "vocab_size": 6, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "num_local_experts": 2, "num_experts_per_tok": 1})";

class PlanOfAMixture : public ::testing::Test {
 protected:
  PlanOfAMixture() : model_(kMixtral) {
    std::vector<testing::FixtureTensor> tensors;
    const HfConfig config = HfConfig::parse(kMixtral, "config.json");
    for (const ParameterInfo& parameter : mixtral_family().table(config)) {
      tensors.push_back(testing::counting(parameter.fqn, parameter.shape));
    }
    model_.write(tensors);
  }

  CheckpointFixture model_;
};

TEST_F(PlanOfAMixture, ShowsTheBytesOfItsExperts) {
  const auto document = run({"plan", model_.path(), "--ranks", "2", "--json"}).json();
  constexpr int kExperts = 2 * 3 * 4 * 6; // elements
  EXPECT_EQ(document["expert_bytes"], 4 * kExperts);
  EXPECT_EQ(document["units"][0]["expert_bytes"], 0);
  EXPECT_EQ(document["units"][1]["expert_bytes"], 4 * kExperts);
  EXPECT_EQ(document["per_rank"][0]["expert_bytes"], 2 * kExperts);
  const std::string text = run({"plan", model_.path(), "--ranks", "2"}).out;
  EXPECT_THAT(text, HasSubstr("  experts, gathered\n"));
  EXPECT_THAT(text, HasSubstr("experts     144 of 260 parameters"));
  EXPECT_THAT(text, HasSubstr("576 B (F32), of which rank 0 holds 288 B\n"));
}

TEST_F(PlanOfAMixture, PredictsAllButItsActivations) {
  const auto training = run({"plan", model_.path(), "--ranks", "2", "--json"}).json()["training"];
  EXPECT_TRUE(training["peak_bytes"].is_null());
  EXPECT_THAT(training["why"].get<std::string>(), HasSubstr("MixtralForCausalLM"));
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : training["terms"].items()) {
    sum += bytes.get<std::uint64_t>();
  }
  EXPECT_EQ(training["peak_without_activations_bytes"], sum);
  const std::string text = run({"plan", model_.path(), "--ranks", "2"}).out;
  EXPECT_THAT(text, HasSubstr("\nresident, and what the layers keep besides "));
  EXPECT_THAT(text, HasSubstr("\nactivations of the layers are not in it: no formula says what"));
}

TEST_F(PlanVerb, HasNoColumnForExpertsWhereThereAreNone) {
  EXPECT_THAT(plan({"--ranks", "2"}).out, ::testing::Not(HasSubstr("experts")));
  EXPECT_EQ(plan({"--ranks", "2", "--json"}).json()["expert_bytes"], 0);
}

TEST_F(PlanVerb, RefusesTheVocabDimensionOfATiedWeightByEitherName) {
  for (const char* flag : {"model.embed_tokens.weight=0", "lm_head.weight=0", "lm_head.weight=-2"}) {
    const Answer answer = plan({"--ranks", "2", "--dim", flag});
    EXPECT_EQ(answer.status, 2) << flag;
    EXPECT_THAT(answer.err, HasSubstr("[tied-weight-on-vocab]")) << flag;
  }
  EXPECT_EQ(plan({"--ranks", "2", "--dim", "lm_head.weight=1"}).status, 0);
}

TEST_F(PlanVerb, TakesADimensionForOneParameter) {
  const auto document =
      plan({"--ranks", "2", "--dim", "model.layers.0.mlp.up_proj.weight=0", "--dim", "model.norm.weight=-1", "--json"})
          .json();
  for (const auto& parameter : document["parameters"]) {
    if (parameter["name"] == "model.layers.0.mlp.up_proj.weight") {
      EXPECT_EQ(parameter["dim"], 0);
      EXPECT_EQ(parameter["parts"],
                nlohmann::json::parse(R"([{"first_rank": 0, "ranks": 2, "offset": 0, "size": 4}])"));
    }
  }
}

TEST_F(PlanVerb, RefusesFlagsThatCannotBeUsed) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"--ranks", "0"},
      {"--ranks", "two"},
      {"--ranks", "2", "--ranks-per-host", "0"},
      {"--ranks", "2", "--shard-dim", "middle"},
      {"--ranks", "2", "--param-dtype", "int8"},
      {"--ranks", "2", "--dim", "model.norm.weight"},
      {"--ranks", "2", "--dim", "model.norm.weight=x"},
      {"--ranks", "2", "--dim", "model.norm.weight=0", "--dim", "model.norm.weight=0"},
      {"--ranks", "2", "--seq", "1"},
      {"--ranks", "2", "--batch", "0"},
      {"--ranks", "2", "--compute-dtype", "int8"},
      {"--ranks", "2", "--nonsense"},
  };
  for (const auto& flags : wrong) {
    const Answer answer = plan(flags);
    EXPECT_EQ(answer.status, 2);
    EXPECT_THAT(answer.err, HasSubstr("[bad-flag]")) << answer.err;
  }
}

TEST_F(PlanVerb, RefusesAnUnknownNameAndADimensionThatTheParameterLacks) {
  EXPECT_THAT(plan({"--ranks", "2", "--dim", "nobody=0"}).err, HasSubstr("[unknown-parameter]"));
  const Answer answer = plan({"--ranks", "2", "--dim", "model.norm.weight=1"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, HasSubstr("[bad-shard-dim]"));
}

TEST_F(PlanVerb, ReportsTensorsThatNothingUses) {
  std::vector<testing::FixtureTensor> tensors = tiny_llama_tensors();
  tensors.push_back(testing::counting("stray", {2}));
  model_.write(tensors);
  EXPECT_THAT(plan({"--ranks", "3"}).err, HasSubstr("stray"));
  const auto findings = plan({"--ranks", "3", "--json"}).json()["findings"];
  ASSERT_EQ(findings.size(), 1U); // once, not once a rank
  EXPECT_EQ(findings[0]["code"], "unused-tensor");
}

TEST(PlanVerbOfUntiedModels, TakesTheRemedyThatItNames) {
  CheckpointFixture model(untied_config());
  model.write(tiny_llama_tensors());
  const Answer refused = run({"plan", model.path(), "--ranks", "2"});
  EXPECT_EQ(refused.status, 2);
  const std::string remedy = "--tie lm_head.weight=model.embed_tokens.weight";
  ASSERT_THAT(refused.err, HasSubstr(remedy));
  EXPECT_EQ(run({"plan", model.path(), "--ranks", "2", "--tie", remedy.substr(6)}).status, 0);
}

} // namespace
} // namespace tieshard::cli
