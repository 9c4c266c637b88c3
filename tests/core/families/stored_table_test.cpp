#include "tieshard/core/families/stored_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

using testing::CheckpointFixture;
using testing::counting;
using ::testing::ElementsAre;
using testing::FixtureTensor;
using testing::zeros;

constexpr const char* kTied = R"({"tie_word_embeddings": true, "architectures": ["PlatypusForCausalLM"]})";

/// "name dtype shape" of each row.
std::vector<std::string> rows(const std::string& config, const std::vector<FixtureTensor>& tensors) {
  CheckpointFixture fixture(config);
  fixture.write(tensors);
  std::vector<std::string> result;
  for (const ParameterInfo& row : table_of_stored(fixture.open())) {
    result.push_back(concat(row.fqn, " ", name(row.dtype), " ", to_string(row.shape)));
  }
  return result;
}

TEST(TableOfStored, TakesWideFloatsForParametersAndNothingElse) {
  EXPECT_THAT(rows("{}",
                   {counting("b", {2, 3}),
                    testing::as_bf16(counting("a", {4})),
                    zeros("ids", DType::kI64, {4}),
                    zeros("mask", DType::kBool, {4})}),
              ElementsAre("a BF16 [4]", "b F32 [2, 3]"));
}

TEST(TableOfStored, GivesEachRowAnIdentityOfItsOwn) {
  CheckpointFixture fixture;
  fixture.write({counting("a", {2}), counting("b", {2})});
  const ParameterTable table = table_of_stored(fixture.open());
  ASSERT_EQ(table.size(), 2U);
  EXPECT_NE(table[0].identity, table[1].identity);
}

TEST(TableOfStored, FoldsMxfp4BlocksAndScalesIntoTheMatrixThatTheyAre) {
  const std::vector<FixtureTensor> stored = {zeros("experts.up_blocks", DType::kU8, {2, 6, 3, 16}),
                                             zeros("experts.up_scales", DType::kU8, {2, 6, 3})};
  EXPECT_THAT(rows(R"({"quantization_config": {"quant_method": "mxfp4"}})", stored),
              ElementsAre("experts.up BF16 [2, 96, 6]"));
  EXPECT_THAT(rows("{}", stored), ElementsAre());
}

TEST(TableOfStored, FoldsFp8ValuesAndTheirScales) {
  EXPECT_THAT(rows(R"({"quantization_config": {"quant_method": "fp8"}})",
                   {zeros("q.weight", DType::kF8E4M3, {4, 8}),
                    counting("q.weight_scale_inv", {1, 1}),
                    zeros("k.weight", DType::kF8E5M2, {4, 8}),
                    counting("k.weight_scale", {}),
                    counting("k.input_scale", {}),
                    counting("norm.weight", {8}),
                    counting("norm.weight_scale", {8})}),
              ElementsAre("k.weight BF16 [4, 8]",
                          "norm.weight F32 [8]",
                          "norm.weight_scale F32 [8]", // of a weight that needs none: a parameter of that name
                          "q.weight BF16 [4, 8]"));
}

TEST(TableOfStored, ListsAHeadThatOnlyTheFlagGivesAValueLast) {
  const std::vector<FixtureTensor> stored = {counting("model.embed_tokens.weight", {6, 4}),
                                             counting("model.zero.weight", {4})};
  EXPECT_THAT(
      rows(kTied, stored),
      ElementsAre("model.embed_tokens.weight F32 [6, 4]", "model.zero.weight F32 [4]", "lm_head.weight F32 [6, 4]"));
  EXPECT_THAT(rows(R"({"tie_word_embeddings": false})", stored),
              ElementsAre("model.embed_tokens.weight F32 [6, 4]", "model.zero.weight F32 [4]"));
}

TEST(TableOfStored, PutsAStoredHeadBehindTheEmbeddingThatOwnsItsStorage) {
  EXPECT_THAT(rows(kTied, {counting("model.embed_tokens.weight", {6, 4}), counting("lm_head.weight", {6, 4})}),
              ElementsAre("model.embed_tokens.weight F32 [6, 4]", "lm_head.weight F32 [6, 4]"));
}

TEST(TableOfStored, PutsTheEmbeddingsOfEncoderAndDecoderBehindTheSharedOne) {
  EXPECT_THAT(rows("{}",
                   {counting("shared.weight", {6, 4}),
                    counting("encoder.embed_tokens.weight", {6, 4}),
                    counting("decoder.embed_tokens.weight", {6, 4}),
                    counting("zero.weight", {4})}),
              ElementsAre("shared.weight F32 [6, 4]",
                          "zero.weight F32 [4]",
                          "encoder.embed_tokens.weight F32 [6, 4]",
                          "decoder.embed_tokens.weight F32 [6, 4]"));
}

} // namespace
} // namespace tieshard
