#include "tieshard/core/families/activation_sizes.h"

#include "tieshard/core/families/family.h"

namespace tieshard {
namespace {

/// A layer keeps four tensors of the hidden size (its input, both norms' outputs, the sum in between), four of the
/// query size (queries, keys and values repeated for each query head, what attention gives) and three of the
/// intermediate size (gate, up, their product); in float32 a scale of each norm and a logsumexp of each head. The
/// backward of the MLP is where a layer needs most besides: four of the intermediate and two of the hidden size.
/// Norms on branches keep what the two branches give, norms on queries and keys what they have before them, and both a
/// scale of each of their rows.
ActivationSizes of_dense(const DecoderConfig& decoder) {
  const std::int64_t hidden = decoder.hidden_size;
  const std::int64_t query = decoder.num_attention_heads * decoder.head_dim;
  const std::int64_t inner = decoder.intermediate_size;
  ActivationSizes sizes{.vocab = decoder.vocab_size,
                        .hidden = hidden,
                        .layers = static_cast<std::int64_t>(decoder.layers.size()),
                        .kept = {hidden, hidden, hidden, hidden, query, query, query, query, inner, inner, inner},
                        .kept_float32 = 2 + decoder.num_attention_heads,
                        .backward = {inner, inner, inner, inner, hidden, hidden}};
  if (decoder.branch_norms) {
    sizes.kept.insert(sizes.kept.end(), {hidden, hidden});
    sizes.kept_float32 += 2;
  }
  if (decoder.query_key_norms) {
    sizes.kept.insert(sizes.kept.end(), {query, decoder.num_key_value_heads * decoder.head_dim});
    sizes.kept_float32 += decoder.num_attention_heads + decoder.num_key_value_heads;
  }
  return sizes;
}

/// Dropout, caps and sinks take another kernel, which keeps the attention weights: those grow with the sequence.
bool keeps_attention_weights(const DecoderConfig& decoder) {
  return decoder.attention_dropout > 0.0 || decoder.attention_softcap > 0.0 || decoder.sinks;
}

std::optional<DecoderConfig> decoder_of(const HfConfig& config) {
  const Family* family = find_family(config);
  return family == nullptr ? std::nullopt : family->decoder(config);
}

} // namespace

std::optional<ActivationSizes> activation_sizes(const HfConfig& config) {
  const std::optional<DecoderConfig> decoder = decoder_of(config);
  if (!decoder || decoder->experts || keeps_attention_weights(*decoder)) {
    return std::nullopt;
  }
  return of_dense(*decoder);
}

std::optional<ActivationSizes> sizes_without_activations(const HfConfig& config) {
  const std::optional<DecoderConfig> decoder = decoder_of(config);
  if (!decoder) {
    return std::nullopt;
  }
  return ActivationSizes{.vocab = decoder->vocab_size,
                         .hidden = decoder->hidden_size,
                         .layers = static_cast<std::int64_t>(decoder->layers.size())};
}

} // namespace tieshard
