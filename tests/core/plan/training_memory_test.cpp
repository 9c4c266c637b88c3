#include "tieshard/core/plan/training_memory.h"

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/known_families.h"

namespace tieshard {
namespace {

struct Sizes {
  std::int64_t vocab = 6;
  std::int64_t hidden = 4;
  std::int64_t intermediate = 8;
  std::int64_t layers = 1;
  std::int64_t heads = 2;
  std::int64_t key_value_heads = 2;
};

HfConfig config(const Sizes& sizes) {
  return HfConfig::parse(concat(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": )",
                                sizes.vocab,
                                R"(, "hidden_size": )",
                                sizes.hidden,
                                R"(, "intermediate_size": )",
                                sizes.intermediate,
                                R"(, "num_hidden_layers": )",
                                sizes.layers,
                                R"(, "num_attention_heads": )",
                                sizes.heads,
                                R"(, "num_key_value_heads": )",
                                sizes.key_value_heads,
                                "}"),
                         "config.json");
}

/// A Llama over `ranks`.
struct Model {
  HfConfig config;
  bool tied = true;
  bool layers_are_units = true;
  DType dtype = DType::kF32; ///< of the shards

  TrainingMemory predict(std::int64_t ranks, const TrainingStep& step) const {
    ParameterTable table = llama_family().table(config);
    for (ParameterInfo& parameter : table) {
      parameter.dtype = dtype;
    }
    const TieRegistry ties =
        tied ? TieRegistry::from_map({{"lm_head.weight", "model.embed_tokens.weight"}}, table) : TieRegistry();
    const auto units = layers_are_units ? llama_family().units(config) : std::vector<UnitSpec>{};
    const ShardPlan plan = ShardPlan::build(table, ties, ranks, {.units = units});
    return predict_training_memory(plan, *activation_sizes(config), step);
  }
};

// Root 28 elements (embedding 24), layer 168, on two ranks half of each; 2 x 3 tokens.
TEST(TrainingMemory, OfSmallTensorsIsTheFullestMomentOfTheHeap) {
  const TrainingMemory memory = Model{config({})}.predict(2, {.sequence = 3, .batch = 2});
  EXPECT_EQ(memory.process, kProcessBytes);
  EXPECT_EQ(memory.shards, 98U * 4);
  EXPECT_EQ(memory.moments, 98U * 4 * 2);
  EXPECT_EQ(memory.gradients, 0U); // of no layer yet, as the backward begins
  EXPECT_EQ(memory.whole_parameters, (28U + 168) * 4);
  EXPECT_EQ(memory.whole_gradients, (24U + 168) * 4);
  // kept 4 x 4 + 4 x 4 + 3 x 8 = 56 a token, float32 2 + 2, at the end 4 x 4, at work 4 x 8 + 2 x 4 = 40
  EXPECT_EQ(memory.activations, (56U + 4 + 16 + 40) * 6 * 4);
  EXPECT_EQ(memory.loss, 0U);
  EXPECT_EQ(memory.holes, 5120U / 20);
  EXPECT_EQ(memory.total(), kProcessBytes + 392 + 5120 + 256);
}

TEST(TrainingMemory, HasMomentsInFloat32AtLeast) {
  const TrainingStep step{.sequence = 3, .batch = 2};
  EXPECT_EQ((Model{.config = config({}), .dtype = DType::kBF16}.predict(2, step).moments), 98U * 4 * 2);
  EXPECT_EQ((Model{.config = config({}), .dtype = DType::kF64}.predict(2, step).moments), 98U * 8 * 2);
}

// Root 4,004 elements, layer 168; 2 x 2 rows of 1,000 logits outweigh everything else.
TEST(TrainingMemory, WithNarrowComputeHasLogitsThriceAndTheSlopesOfAllRows) {
  const TrainingMemory memory =
      Model{config({.vocab = 1000})}.predict(2, {.sequence = 3, .batch = 2, .compute_dtype = DType::kBF16});
  EXPECT_EQ(memory.shards, 2086U * 4);
  EXPECT_EQ(memory.moments, 2086U * 4 * 2);
  EXPECT_EQ(memory.whole_parameters, (4004U + 168 + 84) * 2); // the layer's shards too, cast to be gathered
  EXPECT_EQ(memory.whole_gradients, 4000U * 2);               // slopes, which the head's gradient is made of
  EXPECT_EQ(memory.activations, 56U * 6 * 2 + 4 * 6 * 4 + 16 * 6 * 2);
  EXPECT_EQ(memory.loss, 4000U * (2 + 4 + 4));
  EXPECT_EQ(memory.holes, 74160U / 20);
}

// Slopes of 8 rows of 2 bytes would take as much as the head's gradient in float32, 4 x 4 bytes a token; those of 10
// more.
TEST(TrainingMemory, WithNarrowComputeOfManyRowsHasTheHeadsGradientInFloat32) {
  const Model model{config({.vocab = 1000})};
  const auto whole_gradients = [&](std::int64_t sequence) {
    return model.predict(2, {.sequence = sequence, .batch = 2, .compute_dtype = DType::kBF16}).whole_gradients;
  };
  EXPECT_EQ(whole_gradients(5), 8U * 1000 * 2);
  EXPECT_EQ(whole_gradients(6), 4U * 1000 * 4);
}

// 1,000 rows of 40,000 slopes are large, and so is the head's gradient that is made of them.
TEST(TrainingMemory, HasTheSlopesBesideTheGradientThatIsMadeOfThem) {
  const Model model{config({.vocab = 40'000, .hidden = 512, .intermediate = 1, .heads = 1, .key_value_heads = 1})};
  const TrainingMemory memory = model.predict(4, {.sequence = 1001, .compute_dtype = DType::kBF16});
  EXPECT_EQ(memory.whole_gradients, 1000U * 40'000 * 2 + 40'000U * 512 * 2);
}

// A row of logits takes 20 MiB, so that two do not fit into one piece.
TEST(TrainingMemory, HasOnePieceOfLogitsOnly) {
  const TrainingMemory memory = Model{config({.vocab = std::int64_t{5} << 20})}.predict(2, {.sequence = 3});
  EXPECT_EQ(memory.loss, std::uint64_t{40} << 20);
}

// SmolLM2-135M on two ranks, 256 tokens: 1,566 to 1,645 MiB were measured, as the process by itself took 110 to 188.
// Its embedding, 113,246,208 bytes, is large.
TEST(TrainingMemory, OfLargeTensorsHasAFullestMomentOfItsOwn) {
  const TrainingMemory memory =
      Model{
          config({.vocab = 49152, .hidden = 576, .intermediate = 1536, .layers = 30, .heads = 9, .key_value_heads = 3})}
          .predict(2, {.sequence = 256});
  EXPECT_EQ(memory.shards, 269'030'016U);
  EXPECT_EQ(memory.moments, 538'060'032U);
  EXPECT_EQ(memory.gradients,
            56'623'104U); // of the embedding's shard; the others are where the activations were before
  EXPECT_EQ(memory.whole_parameters, 113'246'208U + 576 * 4 + 14'160'384); // the embedding, the last norm, a layer
  EXPECT_EQ(memory.whole_gradients, 113'246'208U);                         // the embedding's is added into the head's
  EXPECT_EQ(memory.activations, 30U * (9216 + 11) * 256 * 4 + 3 * 576 * 256 * 4);
  EXPECT_EQ(memory.loss, 2U * 128 * 49152 * 4); // 255 rows in two pieces
  EXPECT_EQ(memory.holes, 774'531'072U / 20);
  EXPECT_EQ(memory.total() >> 20, 1570U);
}

TEST(TrainingMemory, OfOneRankHasNoWholeParametersUnlessTheyAreNarrower) {
  const Model model{config({})};
  EXPECT_EQ(model.predict(1, {.sequence = 3}).whole_parameters, 0U);
  EXPECT_EQ(model.predict(1, {.sequence = 3, .compute_dtype = DType::kBF16}).whole_parameters, (28U + 168) * 2);
}

// Few tokens and large layers: the heap is fullest when each of the four layers has its gradient.
TEST(TrainingMemory, CountsTheGradientsOfTheLayersWhereTheyAreMoreThanActivations) {
  const Model model{config({.vocab = 8, .hidden = 64, .intermediate = 64, .layers = 4})};
  const std::uint64_t layer = 7U * 64 * 64 + 2 * 64;
  const TrainingMemory two = model.predict(2, {.sequence = 2});
  EXPECT_EQ(two.gradients, 4 * layer / 2 * 4);
  EXPECT_EQ(two.activations, 0U);
  EXPECT_EQ(two.whole_gradients, (8U * 64 + layer) * 4); // of the head and of the last layer
  const TrainingMemory one = model.predict(1, {.sequence = 2});
  EXPECT_EQ(one.gradients, 4 * layer * 4);
  EXPECT_EQ(one.whole_gradients, 8U * 64 * 4 + 64 * 4); // a layer's whole gradient is the shard's
}

TEST(TrainingMemory, HoldsEveryLayerWholeWithoutReshardAfterForward) {
  const Model model{config({.layers = 5})};
  const TrainingStep step{.sequence = 300, .reshard_after_forward = false};
  TrainingStep resharding = step;
  resharding.reshard_after_forward = true;
  EXPECT_EQ(model.predict(2, step).whole_parameters, (28U + 5 * 168) * 4);
  EXPECT_EQ(model.predict(2, resharding).whole_parameters, (28U + 168) * 4);
}

// 128 MiB are large, so the mapped pool holds the root alone, which is reduced last.
TEST(TrainingMemory, HasTheReducedGradientsBesideThoseOfAnUntiedRoot) {
  const HfConfig large = config({.vocab = 1 << 20, .hidden = 32});
  const std::uint64_t embedding = std::uint64_t{128} << 20;
  const auto rounded = [](std::uint64_t bytes) { return bytes & ~std::uint64_t{0xFFFF}; }; // norms left out
  const TrainingMemory tied = Model{large}.predict(4, {.sequence = 2});
  const TrainingMemory untied = Model{large, false}.predict(4, {.sequence = 2});
  EXPECT_EQ(rounded(tied.whole_gradients), embedding); // the embedding's is added into the head's
  EXPECT_EQ(rounded(tied.gradients), embedding / 4);
  EXPECT_EQ(rounded(untied.whole_gradients), 2 * embedding); // of two weights
  EXPECT_EQ(rounded(untied.gradients), 2 * embedding / 4);
}

// As its gradients become those of its float32 shards, the root's narrow parameters are gone.
TEST(TrainingMemory, OfOneRankFreesTheRootBeforeItsGradientsAreWidened) {
  const Model untied{config({.vocab = 1 << 20, .hidden = 64}), false};
  const std::uint64_t narrow = std::uint64_t{128} << 20;
  const TrainingMemory memory = untied.predict(1, {.sequence = 2, .compute_dtype = DType::kBF16});
  EXPECT_EQ(memory.gradients, 2 * 2 * narrow);
  EXPECT_GE(memory.whole_gradients, 2 * narrow);
  EXPECT_LT(memory.whole_gradients, 2 * narrow + narrow / 16); // slopes of the row are 2 MiB
  EXPECT_LT(memory.whole_parameters, narrow);
}

TEST(TrainingMemory, OfAModelInOneUnitCountsTheRootOnce) {
  const TrainingMemory memory = Model{config({}), true, false}.predict(2, {.sequence = 3});
  EXPECT_EQ(memory.whole_parameters, 196U * 4);
}

TEST(TrainingMemory, OfAnAbsurdStepDoesNotWrap) {
  const Model model{config({.vocab = 1 << 20, .hidden = 1 << 14, .intermediate = 1 << 16, .layers = 1000})};
  const TrainingMemory memory = model.predict(1, {.sequence = 100'000'000, .batch = 1'000'000});
  EXPECT_GT(memory.activations, std::uint64_t{1} << 62);
  EXPECT_GE(memory.total(), memory.activations);
}

} // namespace
} // namespace tieshard
