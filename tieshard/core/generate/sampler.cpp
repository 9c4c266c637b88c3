#include "tieshard/core/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

void require_usable(std::span<const float> logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const auto wrong = std::ranges::find_if(logits, [](float logit) { return std::isnan(logit) || logit == -kNever; });
  if (wrong != logits.end() || std::ranges::all_of(logits, [](float logit) { return logit == kNever; })) {
    throw InputError({.code = Code::kNotFinite,
                      .what = "a model's logits choose no token",
                      .where = wrong == logits.end() ? "all of them" : concat("token ", wrong - logits.begin()),
                      .why = wrong == logits.end() ? "expected a finite logit, got -inf for every token"
                                                   : concat("expected a finite logit or -inf, got ", *wrong),
                      .fix = "check the model's values (`tieshard doctor`), or compute in float32 (--dtype)"});
  }
}

void normalise(std::vector<TokenChance>& kept) {
  double sum = 0;
  for (const TokenChance& chance : kept) {
    sum += chance.probability;
  }
  for (TokenChance& chance : kept) {
    chance.probability /= sum;
  }
}

/// All tokens with their weights, the likeliest first; of equal ones the first.
std::vector<TokenChance> weighted(std::span<const float> logits, double temperature) {
  const double highest = *std::ranges::max_element(logits);
  std::vector<TokenChance> all;
  all.reserve(logits.size());
  for (std::size_t token = 0; token < logits.size(); ++token) {
    all.push_back({static_cast<std::int64_t>(token), std::exp((logits[token] - highest) / temperature)});
  }
  std::ranges::stable_sort(all, std::greater(), &TokenChance::probability);
  return all;
}

void keep_top_k(std::vector<TokenChance>& kept, std::int64_t count) {
  if (count == 0 || count >= static_cast<std::int64_t>(kept.size())) {
    return;
  }
  const double last = kept[static_cast<std::size_t>(count - 1)].probability;
  const auto end = std::ranges::find_if(kept, [last](const TokenChance& chance) { return chance.probability < last; });
  kept.erase(end, kept.end());
}

/// Pre: normalised
void keep_top_p(std::vector<TokenChance>& kept, double share) {
  double before = 0;
  std::size_t count = 0;
  while (count < kept.size() && before < share) {
    before += kept[count].probability;
    ++count;
  }
  kept.resize(std::max<std::size_t>(count, 1));
}

} // namespace

std::vector<TokenChance> chances(std::span<const float> logits, const SamplingOptions& options) {
  require_usable(logits);
  std::vector<TokenChance> kept = weighted(logits, options.temperature);
  keep_top_k(kept, options.top_k);
  normalise(kept);
  if (options.top_p < 1) {
    keep_top_p(kept, options.top_p);
    normalise(kept);
  }
  return kept;
}

std::int64_t Sampler::next(std::span<const float> logits) {
  if (options_.greedy) {
    require_usable(logits);
    return std::ranges::max_element(logits) - logits.begin();
  }
  const std::vector<TokenChance> kept = chances(logits, options_);
  double left = static_cast<double>(generator_() >> 11U) * 0x1p-53; // from 0 to below 1, the same with every library
  for (const TokenChance& chance : kept) {
    left -= chance.probability;
    if (left < 0) {
      return chance.token;
    }
  }
  return kept.back().token; // the probabilities' sum was rounded down
}

} // namespace tieshard
