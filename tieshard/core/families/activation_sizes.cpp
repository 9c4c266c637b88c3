#include "tieshard/core/families/activation_sizes.h"

#include "tieshard/core/families/llama.h"

namespace tieshard {
namespace {

/// A layer keeps four tensors of the hidden size (its input, both norms' outputs, the sum in between), four of the
/// query size (queries, keys and values repeated for each query head, what attention gives) and three of the
/// intermediate size (gate, up, their product); in float32 a scale of each norm and a logsumexp of each head. The
/// backward of the MLP is where a layer needs most besides: four of the intermediate and two of the hidden size.
std::optional<ActivationSizes> of_llama(const LlamaConfig& llama) {
  if (llama.attention_dropout > 0.0) {
    return std::nullopt; // another kernel, which keeps the attention weights
  }
  const std::int64_t hidden = llama.hidden_size;
  const std::int64_t query = llama.num_attention_heads * llama.head_dim;
  const std::int64_t inner = llama.intermediate_size;
  return ActivationSizes{.vocab = llama.vocab_size,
                         .hidden = hidden,
                         .layers = llama.num_hidden_layers,
                         .kept = {hidden, hidden, hidden, hidden, query, query, query, query, inner, inner, inner},
                         .kept_float32 = 2 + llama.num_attention_heads,
                         .backward = {inner, inner, inner, inner, hidden, hidden}};
}

} // namespace

std::optional<ActivationSizes> activation_sizes(const HfConfig& config) {
  return llama_family().matches(config) ? of_llama(LlamaConfig::from(config)) : std::nullopt;
}

} // namespace tieshard
