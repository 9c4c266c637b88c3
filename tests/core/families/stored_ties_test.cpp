#include "tieshard/core/families/stored_ties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::FixtureTensor;
using ::testing::IsEmpty;

/// "alias = canonical", with == for what the flag does not decide.
std::vector<std::string> ties_of(const std::string& config, const std::vector<FixtureTensor>& tensors) {
  CheckpointFixture fixture(config);
  fixture.write(tensors);
  std::vector<std::string> texts;
  for (const FamilyTie& tie : ties_of_stored(fixture.open())) {
    texts.push_back(concat(tie.alias, tie.always ? " == " : " = ", tie.canonical));
  }
  return texts;
}

std::vector<FixtureTensor> matrices(const std::vector<std::string>& names) {
  std::vector<FixtureTensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back(counting(name, {6, 4}));
  }
  return tensors;
}

std::string tied(const std::string& architecture) {
  return R"({"tie_word_embeddings": true, "architectures": [")" + architecture + R"("]})";
}

std::vector<std::string> tied_to(const std::vector<std::string>& names, const std::string& architecture) {
  return ties_of(tied(architecture), matrices(names));
}

TEST(TiesOfStored, FindThePlaceOfTheHead) {
  const std::string causal = "PlatypusForCausalLM";
  EXPECT_THAT(tied_to({"model.embed_tokens.weight"}, causal),
              ElementsAre("lm_head.weight = model.embed_tokens.weight"));
  EXPECT_THAT(tied_to({"language_model.model.embed_tokens.weight"}, causal),
              ElementsAre("language_model.lm_head.weight = language_model.model.embed_tokens.weight"));
  EXPECT_THAT(tied_to({"model.language_model.embed_tokens.weight"}, causal),
              ElementsAre("lm_head.weight = model.language_model.embed_tokens.weight"));
  EXPECT_THAT(tied_to({"transformer.wte.weight"}, causal), ElementsAre("lm_head.weight = transformer.wte.weight"));
  EXPECT_THAT(tied_to({"nest.word_embeddings.weight"}, causal),
              ElementsAre("lm_head.weight = nest.word_embeddings.weight"));
  EXPECT_THAT(tied_to({"model.decoder.embed_tokens.weight"}, "WhisperForConditionalGeneration"),
              ElementsAre("proj_out.weight = model.decoder.embed_tokens.weight"));
}

TEST(TiesOfStored, HaveNoHeadForAClassThatHasNone) {
  for (const char* architecture : {"PlatypusModel",
                                   "GPT2ForSequenceClassification",
                                   "AlbertModel",
                                   "T5EncoderModel",
                                   "PlatypusForTokenClassification",
                                   "PlatypusForMaskedLM",
                                   ""}) {
    EXPECT_THAT(tied_to({"model.embed_tokens.weight"}, architecture), IsEmpty()) << architecture;
    EXPECT_THAT(tied_to({"model.embed_tokens.weight", "lm_head.weight"}, architecture),
                ElementsAre("lm_head.weight = model.embed_tokens.weight"))
        << architecture;
  }
}

TEST(TiesOfStored, KnowAHeadByTheRestOfIt) {
  EXPECT_THAT(
      tied_to({"bert.embeddings.word_embeddings.weight", "cls.predictions.transform.dense.weight"}, "BertForMaskedLM"),
      ElementsAre("cls.predictions.decoder.weight = bert.embeddings.word_embeddings.weight"));
  EXPECT_THAT(tied_to({"roberta.embeddings.word_embeddings.weight", "lm_head.dense.weight"}, "RobertaForCausalLM"),
              ElementsAre("lm_head.decoder.weight = roberta.embeddings.word_embeddings.weight"));
  EXPECT_THAT(
      tied_to({"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"}, "BertForPreTraining"),
      ElementsAre("cls.predictions.decoder.weight = bert.embeddings.word_embeddings.weight"));
}

TEST(TiesOfStored, TakeAHeadThatIsStoredElsewhere) {
  EXPECT_THAT(tied_to({"language_model.model.embed_tokens.weight", "lm_head.weight"}, "PlatypusForCausalLM"),
              ElementsAre("lm_head.weight = language_model.model.embed_tokens.weight"));
}

TEST(TiesOfStored, HaveNoHeadWhereTheFlagDoesNotSayTied) {
  const auto tensors = matrices({"model.embed_tokens.weight", "lm_head.weight"});
  EXPECT_THAT(ties_of(R"({"architectures": ["PlatypusForCausalLM"]})", tensors), IsEmpty());
  EXPECT_THAT(ties_of(R"({"tie_word_embeddings": false, "architectures": ["PlatypusForCausalLM"]})", tensors),
              IsEmpty());
}

TEST(TiesOfStored, GuessNotBetweenTwoEmbeddings) {
  EXPECT_THAT(tied_to({"text.embed_tokens.weight", "audio.embed_tokens.weight"}, "PlatypusForCausalLM"), IsEmpty());
  EXPECT_THAT(tied_to({"model.norm.weight"}, "PlatypusForCausalLM"), IsEmpty());
  EXPECT_THAT(tied_to({"model.unembed_tokens.weight"}, "PlatypusForCausalLM"), IsEmpty());
}

TEST(TiesOfStored, JoinTheEmbeddingsOfAnEncoderAndADecoder) {
  EXPECT_THAT(tied_to({"model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"},
                      "BartForConditionalGeneration"),
              ElementsAre("model.encoder.embed_tokens.weight == model.shared.weight",
                          "model.decoder.embed_tokens.weight == model.shared.weight",
                          "lm_head.weight = model.shared.weight"));
  EXPECT_THAT(tied_to({"shared.weight", "encoder.embed_tokens.weight"}, "T5EncoderModel"),
              ElementsAre("encoder.embed_tokens.weight == shared.weight"));
  EXPECT_THAT(tied_to({"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}, "T5Model"),
              ElementsAre("decoder.embed_tokens.weight == encoder.embed_tokens.weight"));
  EXPECT_THAT(ties_of("{}",
                      {counting("m.encoder.embed_tokens.weight", {6, 4}),
                       counting("m.decoder.embed_tokens.weight", {5, 4}),
                       counting("other.decoder.embed_tokens.weight", {6, 4})}),
              IsEmpty());
}

TEST(LoneSharedEmbedding, IsTheOnlyOneOfAnEncoderAndADecoder) {
  const auto lone = [](const std::vector<std::string>& names) {
    CheckpointFixture fixture;
    fixture.write(matrices(names));
    return lone_shared_embedding(fixture.open());
  };
  EXPECT_EQ(lone({"shared.weight", "encoder.norm.weight", "decoder.norm.weight"}), "shared.weight");
  EXPECT_EQ(lone({"model.shared.weight", "model.encoder.norm.weight"}), "model.shared.weight");
  EXPECT_EQ(lone({"shared.weight", "encoder.embed_tokens.weight"}), "");
  EXPECT_EQ(lone({"shared.weight", "norm.weight"}), "");
}

} // namespace
} // namespace tieshard
