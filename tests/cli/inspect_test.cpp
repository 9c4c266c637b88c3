#include "tieshard/cli/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

using testing::Answer;
using testing::as_bf16;
using testing::CheckpointFixture;
using testing::counting;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run;
using testing::tied_config;
using testing::tiny_llama_tensors;

class InspectVerb : public ::testing::Test {
 protected:
  InspectVerb() : model_(tied_config()) {
    model_.write(tiny_llama_tensors());
  }
  CheckpointFixture model_;
};

TEST_F(InspectVerb, SaysTheEssential) {
  const Answer answer = run({"inspect", model_.path()});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("LlamaForCausalLM, 196 parameters; 11 tensors stored, 784 B, F32\n"));
  EXPECT_THAT(answer.out, HasSubstr("hidden 4, layers 1, heads 2"));
  EXPECT_THAT(answer.out, HasSubstr("lm_head.weight = model.embed_tokens.weight"));
  EXPECT_THAT(answer.out, HasSubstr("model.safetensors"));
  EXPECT_THAT(answer.out, Not(HasSubstr("\x1b")));
}

TEST_F(InspectVerb, ListsEveryTensorWhenAsked) {
  const std::string out = run({"inspect", model_.path(), "--all"}).out;
  for (const testing::FixtureTensor& tensor : tiny_llama_tensors()) {
    EXPECT_THAT(out, HasSubstr("\n" + tensor.name + " "));
  }
}

TEST_F(InspectVerb, GivesMachinesEveryTensorWithItsPlace) {
  const auto document = run({"inspect", model_.path(), "--json"}).json();
  EXPECT_EQ(document["parameters"], 196);
  EXPECT_EQ(document["tensors"].size(), 11U);
  const auto& first = document["tensors"][0];
  const Checkpoint checkpoint = model_.open();
  EXPECT_EQ(first["name"], "model.embed_tokens.weight");
  EXPECT_EQ(first["offset"], checkpoint.find("model.embed_tokens.weight")->offset);
  EXPECT_EQ(first["shape"], (std::vector<int>{6, 4}));
  EXPECT_EQ(document["files"][0]["tensors"], 11);
}

TEST_F(InspectVerb, TellsMachinesWhatADecoderIsComputedWith) {
  const auto decoder = run({"inspect", model_.path(), "--json"}).json()["decoder"];
  EXPECT_EQ(decoder["head_dim"], 2);
  EXPECT_EQ(decoder["activation"], "silu");
  EXPECT_EQ(decoder["ropes"][0]["theta"], 10000.0);
  EXPECT_EQ(decoder["layers"].size(), 1U);
  EXPECT_TRUE(decoder["experts"].is_null());
  CheckpointFixture other(R"({"model_type": "nobody_knows"})");
  other.write({counting("a.weight", {4})});
  EXPECT_TRUE(run({"inspect", other.path(), "--json"}).json()["decoder"].is_null());
}

TEST_F(InspectVerb, ShowsTheFirstValuesOfATensor) {
  const auto tensor = run({"inspect", model_.path(), "--tensor", "model.norm.weight", "--first", "3", "--json"}).json();
  EXPECT_EQ(tensor["values"], (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(tensor["stored_as"], "model.norm.weight");
  const Answer text = run({"inspect", model_.path(), "--tensor", "model.norm.weight"});
  EXPECT_THAT(text.out, HasSubstr("first 4  0  1  2  3\n")); // it has no more
}

TEST_F(InspectVerb, ResolvesAnAliasToTheNameThatIsStored) {
  const Answer text = run({"inspect", model_.path(), "--tensor", "lm_head.weight"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("resolves to model.embed_tokens.weight, which is stored"));
  const auto document = run({"inspect", model_.path(), "--tensor", "lm_head.weight", "--json"}).json();
  EXPECT_EQ(document["canonical"], "model.embed_tokens.weight");
  EXPECT_EQ(document["stored_as"], "model.embed_tokens.weight");
  EXPECT_EQ(document["values"][5], 5.0);
}

TEST_F(InspectVerb, SuggestsNamesForOneThatDoesNotExist) {
  const Answer answer = run({"inspect", model_.path(), "--tensor", "model.norm.wieght"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, HasSubstr("[unknown-parameter]"));
  EXPECT_THAT(answer.err, HasSubstr("got model.norm.wieght; the closest names are model.norm.weight"));
}

TEST_F(InspectVerb, TakesNoFirstWithoutATensorAndNoNegativeOne) {
  EXPECT_EQ(run({"inspect", model_.path(), "--first", "3"}).status, 2);
  EXPECT_EQ(run({"inspect", model_.path(), "--tensor", "model.norm.weight", "--first", "-1"}).status, 2);
  EXPECT_EQ(run({"inspect", model_.path(), "--tensor", "model.norm.weight", "--first", "0"}).status, 0);
}

TEST(InspectVerbOfOtherModels, ShowsAnUnknownArchitectureByItsTensors) {
  CheckpointFixture model(R"({"model_type": "nobody_knows"})");
  model.write({counting("a", {2, 3}), as_bf16(counting("b", {4}))});
  const Answer answer = run({"inspect", model.path()});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("nobody_knows, 10 parameters; 2 tensors stored, 32 B, BF16 1, F32 1"));
  EXPECT_THAT(answer.out, HasSubstr("none that config and files show"));
  EXPECT_THAT(answer.err, HasSubstr("[unknown-architecture]"));
}

TEST(InspectVerbOfOtherModels, SaysWhatIsMissing) {
  const Answer answer = run({"inspect", ::testing::TempDir() + "/no_such_directory"});
  EXPECT_EQ(answer.status, 2);
  EXPECT_THAT(answer.err, HasSubstr("[directory-not-found]"));
}

} // namespace
} // namespace tieshard::cli
