#include "tieshard/runtime/generate/generate.h"

#include <algorithm>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"
#include "tests/support/random_decoder.h"

namespace tieshard::testing {
namespace {

using ::testing::ElementsAreArray;
using ::testing::SizeIs;

const std::vector<std::int64_t> kPrompt{3, 1, 4, 1, 5};

/// The likeliest tokens, each from a forward over all before it.
std::vector<std::int64_t> by_hand(LanguageModel& model, int count) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> text = kPrompt;
  for (int made = 0; made < count; ++made) {
    const at::Tensor ids = at::tensor(text, at::kLong).view({1, -1});
    text.push_back(model.forward(ids).select(1, -1).argmax(-1).item<std::int64_t>());
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(kPrompt.size()), text.end()};
}

TEST(Generate, TakesTheLikeliestTokenWithAndWithoutACache) {
  const auto model = random_decoder(llama_sizes(37, 12, 20, 2, 3, 1, 4), 0.5);
  model->eval();
  const auto expected = by_hand(*model, 12);
  for (const bool cache : {true, false}) {
    const Generation generation = generate(*model, kPrompt, {.max_new_tokens = 12, .cache = cache});
    EXPECT_THAT(generation.tokens, ElementsAreArray(expected));
    EXPECT_FALSE(generation.ended);
  }
}

TEST(Generate, EndsBehindAnEndTokenAndReportsEachTokenAsItComes) {
  const auto model = random_decoder(llama_sizes(37, 12, 20, 2, 3, 1, 4), 0.5);
  model->eval();
  const auto expected = by_hand(*model, 12);
  const auto first = std::ranges::find(expected, expected[5]) - expected.begin();
  std::vector<std::int64_t> seen;
  const Generation generation = generate(
      *model, kPrompt, {.max_new_tokens = 12, .end_tokens = {10'000, expected[5]}, .on_token = [&](std::int64_t token) {
                          seen.push_back(token);
                        }});
  EXPECT_TRUE(generation.ended);
  EXPECT_THAT(generation.tokens, SizeIs(static_cast<std::size_t>(first + 1)));
  EXPECT_EQ(generation.tokens.back(), expected[5]);
  EXPECT_EQ(seen, generation.tokens);
}

TEST(Generate, LeavesTheModelAsItWas) {
  const auto model = random_decoder(llama_sizes(37, 12, 20, 2, 3, 1, 4), 0.5);
  for (const bool trains : {true, false}) {
    model->train(trains);
    generate(*model, kPrompt, {.max_new_tokens = 2});
    EXPECT_EQ(model->is_training(), trains);
  }
}

TEST(Generate, RefusesAnEmptyPrompt) {
  const auto model = random_decoder(llama_sizes(37, 12, 20, 2, 3, 1, 4), 0.5);
  expect_refusal([&] { generate(*model, {}, {}); }, Code::kWrongState, {"at least one token"});
}

} // namespace
} // namespace tieshard::testing
