#include "tieshard/runtime/train/evaluation.h"

#include <cmath>
#include <fstream>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/train/parallelize.h"

#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

constexpr std::int64_t kSequence = 8;

TokenData open_tokens(std::int64_t count) {
  const std::filesystem::path path = fresh_directory("data") / "tokens.bin";
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    tokens[index] = static_cast<std::uint16_t>(index * 5 % 37);
  }
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 2));
  return TokenData::open(path, {.dtype = TokenDtype::kUint16, .sequence = kSequence, .vocab_size = 64});
}

TEST(Evaluation, IsTheMeanOverTheTargetsOfAllSamples) {
  const auto model = write_tiny_llama("model", {});
  const TokenData data = open_tokens(5 * kSequence);
  on_ranks(3, [&](const DeviceMesh& mesh) { // five samples: the last round has one rank without any
    const ParallelModel parallel = parallelize(model, mesh, {});
    const Evaluation evaluation = evaluate(*parallel.model, mesh, data, 2);
    EXPECT_EQ(evaluation.samples, 5);
    EXPECT_EQ(evaluation.targets, 5 * (kSequence - 1));
    const at::NoGradGuard no_grad;
    const at::Tensor ids = data.consecutive(0, 5).ids;
    const double expected = causal_lm_loss_sum(parallel.model->forward(ids), ids).item<double>() / 35;
    EXPECT_NEAR(evaluation.loss, expected, 1e-6);
    EXPECT_EQ(evaluation.perplexity(), std::exp(evaluation.loss));
  });
}

TEST(Evaluation, LeavesTheModelAsItWasAndMakesNoGradient) {
  const auto model = write_tiny_llama("model", {});
  const TokenData data = open_tokens(3 * kSequence);
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const ParallelModel parallel = parallelize(model, mesh, {.fsdp = {.reshard_after_forward = false}});
    for (const bool trains : {true, false}) {
      parallel.model->train(trains);
      evaluate(*parallel.model, mesh, data, 1, 2);
      EXPECT_EQ(parallel.model->is_training(), trains);
    }
    for (const at::Tensor& parameter : parallel.model->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  });
}

TEST(Evaluation, OfATokenOutsideTheVocabularyFailsOnAllRanks) {
  const auto model = write_tiny_llama("model", {});
  const std::filesystem::path path = fresh_directory("bad") / "tokens.bin";
  std::vector<std::uint16_t> tokens(2 * kSequence, 1);
  tokens.back() = 99; // in the second rank's sample
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * 2));
  const auto data = TokenData::open(path, {.dtype = TokenDtype::kUint16, .sequence = kSequence, .vocab_size = 64});
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const ParallelModel parallel = parallelize(model, mesh, {});
    expect_refusal([&] { evaluate(*parallel.model, mesh, data, 1); },
                   mesh.rank() == 1 ? Code::kTokenOutOfRange : Code::kPeerFailed,
                   {mesh.rank() == 1 ? "token 15" : "stage evaluation data"});
  });
}

} // namespace
} // namespace tieshard::testing
