#include "tieshard/runtime/train/token_data.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/models/language_model.h"

#include "tests/support/diagnostics.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kSequence = 4;

/// A file of the tokens 0, 1, 2, ... as `Token`: sample i begins with token 4 i.
template <typename Token>
std::filesystem::path write_tokens(std::int64_t count, Token first = 0) {
  const std::filesystem::path path = fresh_directory("data") / "tokens.bin";
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<Token>(first + index);
  }
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
  return path;
}

TokenDataOptions options_with(bool shuffle, std::uint64_t seed = 0) {
  return {.dtype = TokenDtype::kUint16, .sequence = kSequence, .vocab_size = 1 << 20, .shuffle = shuffle, .seed = seed};
}

/// Which samples a batch holds.
std::vector<std::int64_t> samples_in(const at::Tensor& ids) {
  std::vector<std::int64_t> samples;
  for (std::int64_t row = 0; row < ids.size(0); ++row) {
    const at::Tensor expected = at::arange(kSequence, at::kLong) + ids[row][0];
    EXPECT_TRUE(at::equal(ids[row], expected)) << "a row of consecutive tokens";
    samples.push_back(ids[row][0].item<std::int64_t>() / kSequence);
  }
  return samples;
}

/// The samples of the first `steps` steps of every rank, in the order of the global batches.
std::vector<std::int64_t> global_order(TokenData& data, std::int64_t steps, std::int64_t batch, std::int64_t ranks) {
  std::vector<std::int64_t> order;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::vector<std::int64_t> part = samples_in(data.batch(step, batch, rank, ranks));
      order.insert(order.end(), part.begin(), part.end());
    }
  }
  return order;
}

TEST(TokenData, WithoutShufflingTakesConsecutiveSamplesRankMajor) {
  TokenData data = TokenData::open(write_tokens<std::uint16_t>(50), options_with(false));
  EXPECT_EQ(data.samples(), 12); // the rest of two tokens is not used
  EXPECT_EQ(data.tokens(), 50);
  EXPECT_THAT(samples_in(data.batch(0, 2, 0, 2)), ElementsAre(0, 1));
  EXPECT_THAT(samples_in(data.batch(0, 2, 1, 2)), ElementsAre(2, 3));
  EXPECT_THAT(samples_in(data.batch(1, 2, 0, 2)), ElementsAre(4, 5));
  EXPECT_THAT(samples_in(data.batch(1, 2, 1, 2)), ElementsAre(6, 7));
}

TEST(TokenData, OfAnEncoderDecoderPutsTheLastTokensOfEachSampleApart) {
  TokenDataOptions options = options_with(false);
  options.target = 1;
  TokenData data = TokenData::open(write_tokens<std::uint16_t>(3 * kSequence), options);
  for (const TokenBatch& batch : {data.batch_from(1, 2, 0), data.consecutive(1, 2)}) {
    EXPECT_TRUE(at::equal(batch.ids, at::tensor({4, 5, 6, 8, 9, 10}, at::kLong).view({2, 3})));
    EXPECT_TRUE(at::equal(batch.labels, at::tensor({7, 11}, at::kLong).view({2, 1})));
  }
}

TEST(TokenData, RefusesATargetThatLeavesNothingOrLiesInDocumentsOrFitsNotTheFamily) {
  const std::filesystem::path path = write_tokens<std::uint16_t>(3 * kSequence);
  TokenDataOptions options = options_with(false);
  options.target = kSequence;
  expect_refusal([&] { TokenData::open(path, options); }, Code::kBadFlag, {"--target-len 4", "1 to 3"});
  options.target = 1;
  options.document_separator = 3;
  expect_refusal([&] { TokenData::open(path, options); }, Code::kBadFlag, {"--target-len 1", "documents"});
  const HfConfig t5 = HfConfig::parse(R"({"model_type": "t5"})", "config.json");
  const HfConfig llama = HfConfig::parse(R"({"model_type": "llama"})", "config.json");
  require_target_of(require_family(t5), t5, 3);
  require_target_of(require_family(llama), llama, 0);
  expect_refusal([&] { require_target_of(require_family(t5), t5, 0); }, Code::kBadFlag, {"--target-len 0", "t5"});
  expect_refusal(
      [&] { require_target_of(require_family(llama), llama, 3); }, Code::kBadFlag, {"--target-len 3", "llama"});
}

TEST(TokenData, BeginsTheNextEpochWhereTheLastEnds) {
  TokenData data = TokenData::open(write_tokens<std::uint16_t>(5 * kSequence), options_with(false));
  EXPECT_THAT(global_order(data, 2, 2, 2), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2));
}

TEST(TokenData, ShufflesEachEpochIntoAnotherPermutation) {
  constexpr std::int64_t kSamples = 24;
  TokenData data = TokenData::open(write_tokens<std::uint16_t>(kSamples * kSequence), options_with(true));
  const std::vector<std::int64_t> order = global_order(data, 6, 4, 2); // two epochs of 24
  std::vector<std::int64_t> all(kSamples);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::int64_t> first(order.begin(), order.begin() + kSamples);
  const std::vector<std::int64_t> second(order.begin() + kSamples, order.end());
  EXPECT_THAT(first, ::testing::UnorderedElementsAreArray(all));
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(all));
  EXPECT_NE(first, all);
  EXPECT_NE(first, second);
}

TEST(TokenData, ShufflesAlikeOnEveryRankWhateverWasReadBefore) {
  const auto path = write_tokens<std::uint16_t>(24 * kSequence);
  TokenData one = TokenData::open(path, options_with(true, 7));
  TokenData two = TokenData::open(path, options_with(true, 7));
  EXPECT_EQ(global_order(one, 6, 2, 4), global_order(two, 6, 4, 2));               // the same order, cut otherwise
  EXPECT_EQ(samples_in(one.batch(0, 2, 0, 2)), samples_in(two.batch(0, 2, 0, 2))); // back in the first epoch
}

TEST(TokenData, ShufflesByTheSeed) {
  const auto path = write_tokens<std::uint16_t>(24 * kSequence);
  TokenData one = TokenData::open(path, options_with(true, 1));
  TokenData two = TokenData::open(path, options_with(true, 2));
  EXPECT_NE(global_order(one, 3, 4, 2), global_order(two, 3, 4, 2));
}

TEST(TokenData, ShufflesByEveryBitOfTheSeed) {
  const auto path = write_tokens<std::uint16_t>(24 * kSequence);
  std::set<std::vector<std::int64_t>> orders;
  for (int bit = 0; bit < 64; ++bit) {
    TokenData data = TokenData::open(path, options_with(true, std::uint64_t{1} << bit));
    orders.insert(global_order(data, 3, 4, 2));
  }
  EXPECT_EQ(orders.size(), 64U);
}

TEST(TokenData, ReadsTokensOf32Bits) {
  const auto path = write_tokens<std::uint32_t>(8, 70'000); // above what 16 bits hold
  TokenDataOptions options = options_with(false);
  options.dtype = TokenDtype::kUint32;
  TokenData data = TokenData::open(path, options);
  EXPECT_EQ(data.tokens(), 8);
  EXPECT_TRUE(at::equal(data.batch(0, 2, 0, 1).view({-1}), at::arange(8, at::kLong) + 70'000));
}

TEST(TokenData, WithoutADtypeTakesTheOneThatTheVocabularyNeeds) {
  TokenDataOptions options = options_with(false);
  options.dtype = TokenDtype::kAuto;
  options.vocab_size = 65'536;
  EXPECT_EQ(TokenData::open(write_tokens<std::uint16_t>(8), options).tokens(), 8);
  options.vocab_size = 65'537;
  EXPECT_EQ(TokenData::open(write_tokens<std::uint32_t>(8), options).tokens(), 8);
}

TEST(TokenData, RefusesWiderTokensThanItIsToldToReadAndNotATextOfZeros) {
  const auto wide = write_tokens<std::uint32_t>(100, 1);
  expect_refusal([&] { TokenData::open(wide, options_with(false)); }, Code::kDataMalformed, {"uint32", "--data-dtype"});
  std::ofstream(wide, std::ios::binary) << std::string(400, '\0');
  EXPECT_EQ(TokenData::open(wide, options_with(false)).tokens(), 200);
}

TEST(TokenData, ABatchHasItsLabelsAndDocuments) {
  TokenDataOptions options = options_with(false);
  const auto path = write_tokens<std::uint16_t>(12);
  EXPECT_FALSE(TokenData::open(path, options).batch_from(0, 2, 0).documents.defined());
  options.document_separator = 5;
  const TokenBatch batch = TokenData::open(path, options).batch_from(0, 2, 0);
  EXPECT_TRUE(at::equal(batch.ids, at::arange(8, at::kLong).view({2, 4})));
  EXPECT_TRUE(at::equal(batch.documents, at::tensor({0, 0, 0, 0, 0, 0, 1, 1}, at::kLong).view({2, 4})));
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({0, 1, 2, 3, 4, 5, -100, 7}, at::kLong).view({2, 4})));
}

TEST(TokenData, ConsecutiveRowsBehindTheLastSampleHaveNoTarget) {
  const TokenData data = TokenData::open(write_tokens<std::uint16_t>(12), options_with(true));
  const TokenBatch batch = data.consecutive(2, 2);
  EXPECT_TRUE(at::equal(batch.ids[0], at::arange(8, 12, at::kLong)));
  EXPECT_TRUE(at::equal(batch.labels[0], batch.ids[0]));
  EXPECT_TRUE(batch.ids[1].eq(0).all().item<bool>());
  EXPECT_EQ(count_targets(batch.labels.narrow(0, 1, 1)), 0);
  EXPECT_EQ(count_targets(data.consecutive(7, 2).labels), 0);
}

TEST(TokenData, HeadIsTheBeginningOrAllOfTheFile) {
  const TokenData data = TokenData::open(write_tokens<std::uint16_t>(10), options_with(true));
  EXPECT_TRUE(at::equal(data.head(3), at::arange(3, at::kLong).view({1, 3})));
  EXPECT_TRUE(at::equal(data.head(0), at::arange(10, at::kLong).view({1, 10})));
  EXPECT_TRUE(at::equal(data.head(99), at::arange(10, at::kLong).view({1, 10})));
}

TEST(TokenData, RefusesATokenOutsideTheVocabularyByPositionAndValue) {
  TokenDataOptions options = options_with(false);
  options.vocab_size = 7;
  TokenData data = TokenData::open(write_tokens<std::uint16_t>(12), options);
  EXPECT_NO_THROW(data.batch(0, 1, 0, 1));
  expect_refusal(
      [&] { data.batch(1, 1, 0, 1); }, Code::kTokenOutOfRange, {"tokens.bin", "token 7", "expected below 7, got 7"});
}

TEST(TokenData, RefusesAFileThatIsTooShortOrCutInAToken) {
  expect_refusal([] { TokenData::open(write_tokens<std::uint16_t>(3), options_with(false)); },
                 Code::kDataTooShort,
                 {"tokens.bin", "sequence of 4", "got 3"});
  expect_refusal([] { TokenData::open(write_tokens<std::uint8_t>(9), options_with(false)); },
                 Code::kDataMalformed,
                 {"multiple of 2 bytes, got 9"});
  expect_refusal([] { TokenData::open(fresh_directory("data") / "none.bin", options_with(false)); },
                 Code::kFileNotFound,
                 {"none.bin"});
}

} // namespace
} // namespace tieshard::testing
