#include "tieshard/core/families/decoder_fields.h"

#include <array>
#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"

namespace tieshard {
namespace {

constexpr const char* kAsMade = "write the sizes that the weights were made with";
constexpr const char* kNotComputed = "use a checkpoint without it: its numbers would be others here";

std::int64_t head_size(const HfConfig& config, const DecoderConfig& decoder, std::optional<std::int64_t> fallback) {
  if (config.has("head_dim") || fallback) {
    return positive_or(config, "head_dim", fallback.value_or(0));
  }
  if (decoder.hidden_size % decoder.num_attention_heads != 0) {
    refuse_config(config,
                  "hidden_size",
                  concat("without head_dim, expected a multiple of num_attention_heads = ",
                         decoder.num_attention_heads,
                         ", got ",
                         decoder.hidden_size),
                  "write head_dim, or sizes that divide");
  }
  return decoder.hidden_size / decoder.num_attention_heads;
}

std::int64_t key_value_heads(const HfConfig& config, std::int64_t heads, std::optional<std::int64_t> fallback) {
  const std::int64_t otherwise = is_null(config, "num_key_value_heads") ? heads : fallback.value_or(heads);
  const std::int64_t count = positive_or(config, "num_key_value_heads", otherwise);
  if (heads % count != 0) {
    refuse_config(config,
                  "num_key_value_heads",
                  concat("expected a divisor of num_attention_heads = ", heads, ", got ", count),
                  "give each key/value head the same number of query heads");
  }
  return count;
}

/// Old conversions write -1, which counts from the end of the vocabulary, as torch.nn.Embedding does.
std::optional<std::int64_t> padding_row(const HfConfig& config,
                                        std::int64_t vocab_size,
                                        std::optional<std::int64_t> fallback) {
  const Json& document = config.json();
  const auto field = document.find("pad_token_id");
  if (is_null(config, "pad_token_id") || (field == document.end() && !fallback)) {
    return std::nullopt;
  }
  const Json value = field == document.end() ? Json(*fallback) : *field;
  const bool counts_from_end = value.is_number_integer() && !value.is_number_unsigned() && value < 0;
  const std::int64_t row = counts_from_end ? value.get<std::int64_t>() + vocab_size
                                           : config.integer_or("pad_token_id", fallback.value_or(0));
  if (row < 0 || row >= vocab_size) {
    refuse_config(config,
                  "pad_token_id",
                  concat("expected a row of the vocabulary of ", vocab_size, ", got ", value.dump()),
                  "write a token of the vocabulary, or null");
  }
  return row;
}

GateActivation gate_activation(const HfConfig& config, std::string_view key, std::string_view fallback) {
  constexpr std::array<std::pair<std::string_view, GateActivation>, 5> kKnown = {{
      {"silu", GateActivation::kSilu},
      {"swish", GateActivation::kSilu},
      {"gelu", GateActivation::kGeluErf},
      {"gelu_pytorch_tanh", GateActivation::kGeluTanh},
      {"gelu_new", GateActivation::kGeluTanh},
  }};
  const std::string name = config.string_or(key, fallback);
  for (const auto& [known, activation] : kKnown) {
    if (name == known) {
      return activation;
    }
  }
  refuse_config(config,
                key,
                concat("supported: silu, swish, gelu, gelu_pytorch_tanh, gelu_new; got \"", name, "\""),
                "use a checkpoint that was trained with one of these");
}

double probability(const HfConfig& config, std::string_view key) {
  const double value = config.number_or(key, 0.0);
  if (!(value >= 0.0 && value <= 1.0)) {
    refuse_config(config, key, concat("expected from 0 to 1, got ", value), "write the dropout of the training");
  }
  return value;
}

/// Fields of other families' classes. In the config of a family that lacks them they mean that the model is another
/// one.
void refuse_foreign_fields(const HfConfig& config, bool has_softcaps) {
  for (const std::string_view key :
       {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"}) {
    refuse_other_number(config, key, 1.0);
  }
  for (const std::string_view key :
       {"clip_qkv", "no_rope_layers", "attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.has(key) && !(has_softcaps && key.ends_with("softcapping"))) {
      refuse_config(config, key, "expected null, as the family does not have it", kNotComputed);
    }
  }
}

void require_above_zero(const HfConfig& config, std::string_view key, double value, const char* fix) {
  if (!(value > 0.0)) {
    refuse_config(config, key, concat("expected above 0, got ", value), fix);
  }
}

void require_llama3(const HfConfig& config, const RopeConfig& rope) {
  if (!(rope.low_freq_factor > 0.0 && rope.high_freq_factor > rope.low_freq_factor)) {
    refuse_config(config,
                  "low_freq_factor",
                  concat("expected 0 < low_freq_factor < high_freq_factor, got ",
                         rope.low_freq_factor,
                         " and ",
                         rope.high_freq_factor),
                  "write both factors as the model was trained, mostly 1 and 4");
  }
}

void require_yarn(const HfConfig& config, const RopeConfig& rope) {
  if (!(rope.beta_slow > 0.0 && rope.beta_fast >= rope.beta_slow)) {
    refuse_config(config,
                  "beta_fast",
                  concat("expected 0 < beta_slow <= beta_fast, got ", rope.beta_slow, " and ", rope.beta_fast),
                  "write both as the model was trained, mostly 1 and 32");
  }
  require_above_zero(
      config, "attention_factor", rope.attention_factor.value_or(1.0), "write the factor of the training, or none");
  if (!(rope.theta > 1.0)) { // divided by its logarithm
    refuse_config(config, "rope_theta", concat("yarn needs one above 1, got ", rope.theta), "write the base");
  }
}

void require_scaling(const HfConfig& config, const RopeConfig& rope) {
  require_above_zero(config, "factor", rope.factor, "write the rope scaling factor");
  if (rope.type == "llama3") {
    require_llama3(config, rope);
  }
  if (rope.type == "yarn") {
    require_yarn(config, rope);
  }
  if (rope.type != "linear") {
    require_positive(config, "original_max_position_embeddings", rope.original_max_position_embeddings);
  }
}

void require_rotary_part(const HfConfig& config, const DecoderConfig& decoder, double part, bool may_be_partial) {
  if (!may_be_partial && part != 1.0) {
    refuse_config(config,
                  "partial_rotary_factor",
                  concat("expected 1, as the family turns whole heads, got ", part),
                  kNotComputed);
  }
  const double turned = std::floor(static_cast<double>(decoder.head_dim) * part);
  if (!(part > 0.0 && part <= 1.0) || turned < 2 || std::fmod(turned, 2.0) != 0.0) {
    refuse_config(config,
                  "partial_rotary_factor",
                  concat("expected an even part of head_dim = ", decoder.head_dim, ", from 2 elements on, got ", part),
                  kAsMade);
  }
}

} // namespace

DecoderConfig read_decoder(const HfConfig& config, const DecoderDefaults& defaults) {
  DecoderConfig decoder;
  decoder.vocab_size = positive(config, "vocab_size");
  decoder.hidden_size = positive(config, "hidden_size");
  decoder.intermediate_size = config.integer("intermediate_size");
  const std::int64_t layers = positive(config, "num_hidden_layers");
  require_layer_count(config, "num_hidden_layers", layers);
  decoder.layers.resize(static_cast<std::size_t>(layers));
  decoder.num_attention_heads = positive(config, "num_attention_heads");
  decoder.num_key_value_heads = key_value_heads(config, decoder.num_attention_heads, defaults.num_key_value_heads);
  decoder.head_dim = head_size(config, decoder, defaults.head_dim);
  const std::int64_t query = product(config, "head_dim", decoder.num_attention_heads, decoder.head_dim);
  product(config, "head_dim", query, 3); // the most rows of a fused projection
  if (decoder.head_dim % 2 != 0) {
    refuse_config(config,
                  "head_dim",
                  concat("rotary embedding turns pairs, so expected an even size, got ", decoder.head_dim),
                  "write the head size that the weights were made with");
  }
  decoder.max_position_embeddings = positive_or(config, "max_position_embeddings", defaults.max_position_embeddings);
  decoder.rms_norm_eps = config.number_or("rms_norm_eps", defaults.rms_norm_eps);
  if (!(decoder.rms_norm_eps >= 0.0)) {
    refuse_config(
        config, "rms_norm_eps", concat("expected at least 0, got ", decoder.rms_norm_eps), "write it, mostly 1e-6");
  }
  decoder.attention_dropout = probability(config, "attention_dropout");
  decoder.attention_scale = 1.0 / std::sqrt(static_cast<double>(decoder.head_dim));
  if (!defaults.activation_key.empty()) {
    decoder.activation = gate_activation(config, defaults.activation_key, defaults.activation);
  }
  decoder.pad_token_id = padding_row(config, decoder.vocab_size, defaults.pad_token_id);
  refuse_foreign_fields(config, defaults.softcaps);
  return decoder;
}

RopeConfig read_rotary(const HfConfig& config,
                       const DecoderConfig& decoder,
                       const RotaryDefaults& defaults,
                       std::string_view layer_type) {
  RopeConfig rope = config.rope(layer_type, defaults.rope);
  const bool scaled = rope.type == "linear" || rope.type == "llama3" || rope.type == "yarn";
  if (rope.type != "default" && (!scaled || defaults.only_default)) {
    refuse_config(
        config,
        "rope_type",
        concat(
            "supported: default", defaults.only_default ? "" : ", linear, llama3, yarn", "; got \"", rope.type, "\""),
        "use a checkpoint with a supported rope type");
  }
  require_above_zero(config, "rope_theta", rope.theta, "write the base, mostly 10000");
  require_rotary_part(config, decoder, rope.partial_rotary_factor, defaults.may_be_partial);
  if (rope.original_max_position_embeddings == 0) {
    rope.original_max_position_embeddings = decoder.max_position_embeddings;
  }
  if (scaled) {
    require_scaling(config, rope);
  }
  return rope;
}

std::int64_t expert_count(const HfConfig& config, std::int64_t fallback) {
  const std::int64_t count = config.integer_or("num_local_experts", config.integer_or("num_experts", fallback));
  if (config.has("num_experts") && config.integer("num_experts") != count) {
    refuse_config(config,
                  "num_experts",
                  concat("expected num_local_experts = ", count, ", got ", config.integer("num_experts")),
                  kAsMade);
  }
  return count;
}

void require_experts(const HfConfig& config,
                     const DecoderConfig& decoder,
                     const ExpertsConfig& experts,
                     const ExpertKeys& keys) {
  require_positive(config, keys.count, experts.count);
  require_positive(config, "num_experts_per_tok", experts.chosen);
  require_positive(config, keys.intermediate_size, experts.intermediate_size);
  if (experts.chosen > experts.count) {
    refuse_config(config,
                  "num_experts_per_tok",
                  concat("expected at most ", keys.count, " = ", experts.count, ", got ", experts.chosen),
                  "write how many experts a token goes through");
  }
  const auto layers = static_cast<std::int64_t>(decoder.layers.size());
  require_layer_count(config, keys.count, product(config, keys.count, layers, experts.count));
}

double softcap(const HfConfig& config, std::string_view key, std::optional<double> fallback) {
  if (is_null(config, key) || (!config.has(key) && !fallback)) {
    return 0.0;
  }
  const double cap = config.number_or(key, fallback.value_or(0.0));
  require_above_zero(config, key, cap, "write the cap of the training, or null for none");
  return cap;
}

void refuse_true(const HfConfig& config, std::string_view key) {
  if (config.boolean_or(key, false)) {
    refuse_config(config, key, "expected false, got true", kNotComputed);
  }
}

void refuse_other_number(const HfConfig& config, std::string_view key, double neutral) {
  const double value = config.number_or(key, neutral);
  if (value != neutral) {
    refuse_config(config, key, concat("expected ", neutral, ", got ", value), kNotComputed);
  }
}

bool is_null(const HfConfig& config, std::string_view key) {
  const auto field = config.json().find(key);
  return field != config.json().end() && field->is_null();
}

} // namespace tieshard
