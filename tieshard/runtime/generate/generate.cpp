#include "tieshard/runtime/generate/generate.h"

#include <algorithm>
#include <optional>
#include <span>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/tensors/evaluation_mode.h"

namespace tieshard {
namespace {

void require_decoder(const LanguageModel& model, const std::vector<std::int64_t>& prompt) {
  if (prompt.empty()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a text can only go on after a token",
                      .why = "expected a prompt of at least one token, got none",
                      .fix = "give the token that texts begin with (bos)"});
  }
  if (!model.predicts_next() || model.cached_layers() == 0) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a model cannot go on with a text",
                      .where = model.name(),
                      .why = "expected a decoder, got an encoder-decoder or a "
                             "model that keeps no keys and values",
                      .fix = "generate with a decoder"});
  }
}

/// The logits behind the last of `tokens`, float32 [V] on the host.
at::Tensor next_logits(LanguageModel& model, std::span<const std::int64_t> tokens, at::Device device, KvCache* cache) {
  const at::Tensor ids = at::tensor(at::ArrayRef<std::int64_t>(tokens.data(), tokens.size()), at::kLong).view({1, -1});
  const at::Tensor logits = model.forward(ids.to(device), {.cache = cache});
  return logits.select(1, -1).select(0, 0).to(at::kCPU, at::kFloat).contiguous();
}

} // namespace

Generation generate(LanguageModel& model, const std::vector<std::int64_t>& prompt, const GenerateOptions& options) {
  require_decoder(model, prompt);
  const EvaluationMode mode(model);
  const at::NoGradGuard no_grad;
  const at::Device device = model.parameters().front().device();
  Sampler sampler(options.sampling);
  std::vector<std::int64_t> text = prompt;
  std::optional<KvCache> cache;
  if (options.cache) {
    cache.emplace(model.cached_layers(), static_cast<std::int64_t>(prompt.size()) + options.max_new_tokens);
  }
  Generation generation;
  std::size_t seen = 0; // tokens that the cache holds
  while (static_cast<std::int64_t>(generation.tokens.size()) < options.max_new_tokens && !generation.ended) {
    const auto unseen = std::span(text).subspan(seen);
    const at::Tensor logits = next_logits(model, unseen, device, cache ? &*cache : nullptr);
    seen = cache ? text.size() : 0;
    const std::int64_t token = sampler.next({logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel())});
    text.push_back(token);
    generation.tokens.push_back(token);
    generation.ended = std::ranges::find(options.end_tokens, token) != options.end_tokens.end();
    if (options.on_token) {
      options.on_token(token);
    }
  }
  return generation;
}

} // namespace tieshard
