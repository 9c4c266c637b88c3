// tieshard/core/generate/sampler.h
//
// The next token, chosen from a model's logits.
//
// Flow:   runtime/generate -> [this]
// Source: transformers' logits processors in their order: temperature, top-k, top-p (Holtzman et al., "The curious case
//         of neural text degeneration").

#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace tieshard {

struct SamplingOptions {
  bool greedy = true;       ///< the likeliest token; the rest is not looked at
  double temperature = 1.0; ///< above 0: logits are divided by it
  std::int64_t top_k = 0;   ///< choose among so many of the likeliest; 0: all
  double top_p = 1.0;       ///< choose among the fewest likeliest that have this probability together; above 0
  std::uint64_t seed = 0;
};

struct TokenChance {
  std::int64_t token = 0;
  double probability = 0;
};

/// What is chosen among, the likeliest first, with probabilities that add up to 1. Tokens as likely as the k-th stay.
/// @param logits  one for each token of the vocabulary; -inf is a token that is never chosen
/// @throws InputError not-finite where a logit is NaN or +inf, or all are -inf
std::vector<TokenChance> chances(std::span<const float> logits, const SamplingOptions& options);

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), generator_(options.seed) {}

  /// Of equally likely tokens the greedy one is the first. @throws InputError as chances()
  std::int64_t next(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::mt19937_64 generator_;
};

} // namespace tieshard
