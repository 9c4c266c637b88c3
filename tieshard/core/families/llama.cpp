#include "tieshard/core/families/llama.h"

#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/gated_decoder.h"

namespace tieshard {
namespace {

/// intermediate_size may be 0: its weights are then [0, hidden] and [hidden, 0], and legal.
void check_sizes(const HfConfig& config, const LlamaConfig& llama) {
  const std::array<std::pair<std::string_view, std::int64_t>, 7> sizes = {{
      {"vocab_size", llama.vocab_size},
      {"hidden_size", llama.hidden_size},
      {"num_hidden_layers", llama.num_hidden_layers},
      {"num_attention_heads", llama.num_attention_heads},
      {"num_key_value_heads", llama.num_key_value_heads},
      {"head_dim", llama.head_dim},
      {"max_position_embeddings", llama.max_position_embeddings},
  }};
  for (const auto& [key, value] : sizes) {
    require_positive(config, key, value);
  }
  require_layer_count(config, "num_hidden_layers", llama.num_hidden_layers);
  if (!checked_numel({llama.num_attention_heads, llama.head_dim})) {
    refuse_config(
        config,
        "head_dim",
        concat("num_attention_heads * head_dim overflows: ", llama.num_attention_heads, " * ", llama.head_dim),
        "write the sizes that the weights were made with");
  }
  if (llama.num_attention_heads % llama.num_key_value_heads != 0) {
    refuse_config(config,
                  "num_key_value_heads",
                  concat("expected a divisor of num_attention_heads = ",
                         llama.num_attention_heads,
                         ", got ",
                         llama.num_key_value_heads),
                  "give each key/value head the same number of query heads");
  }
  if (llama.head_dim % 2 != 0) {
    refuse_config(config,
                  "head_dim",
                  concat("rotary embedding turns pairs, so expected an even size, got ", llama.head_dim),
                  "write the head size that the weights were made with");
  }
}

void check_activation(const HfConfig& config) {
  const std::string activation = config.string_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") { // two names of one function in transformers
    refuse_config(config,
                  "hidden_act",
                  concat("supported: silu; got \"", activation, "\""),
                  "use a checkpoint of this family that was trained with silu");
  }
}

void check_rope(const HfConfig& config, const RopeConfig& rope) {
  if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3") {
    refuse_config(config,
                  "rope_type",
                  concat("supported: default, linear, llama3; got \"", rope.type, "\""),
                  "use a checkpoint with a supported rope type");
  }
  if (!(rope.theta > 0.0)) {
    refuse_config(config, "rope_theta", concat("expected above 0, got ", rope.theta), "write the base, mostly 10000");
  }
  if (rope.type == "default") {
    return;
  }
  if (!(rope.factor > 0.0)) {
    refuse_config(config, "factor", concat("expected above 0, got ", rope.factor), "write the rope scaling factor");
  }
  if (rope.type == "llama3" && !(rope.low_freq_factor > 0.0 && rope.high_freq_factor > rope.low_freq_factor)) {
    refuse_config(config,
                  "low_freq_factor",
                  concat("expected 0 < low_freq_factor < high_freq_factor, got ",
                         rope.low_freq_factor,
                         " and ",
                         rope.high_freq_factor),
                  "write both factors as the model was trained, mostly 1 and 4");
  }
  if (rope.type == "llama3" && rope.original_max_position_embeddings < 1) {
    refuse_config(config,
                  "original_max_position_embeddings",
                  concat("expected at least 1, got ", rope.original_max_position_embeddings),
                  "write the context length before the scaling, mostly 8192");
  }
}

/// Old conversions write -1, which counts from the end of the vocabulary, as torch.nn.Embedding does.
std::optional<std::int64_t> padding_row(const HfConfig& config, std::int64_t vocab_size) {
  const auto field = config.json().find("pad_token_id");
  if (field == config.json().end() || field->is_null()) {
    return std::nullopt;
  }
  const bool counts_from_end = field->is_number_integer() && !field->is_number_unsigned() && *field < 0;
  const std::int64_t row = counts_from_end ? field->get<std::int64_t>() + vocab_size : config.integer("pad_token_id");
  if (row < 0 || row >= vocab_size) {
    refuse_config(config,
                  "pad_token_id",
                  concat("expected a row of the vocabulary of ", vocab_size, ", got ", field->dump()),
                  "write a token of the vocabulary, or null");
  }
  return row;
}

GatedDecoderSizes sizes_of(const LlamaConfig& llama) {
  return {.vocab = llama.vocab_size,
          .hidden = llama.hidden_size,
          .layers = llama.num_hidden_layers,
          .query = llama.num_attention_heads * llama.head_dim,
          .key_value = llama.num_key_value_heads * llama.head_dim,
          .intermediate = llama.intermediate_size,
          .attention_bias = llama.attention_bias,
          .mlp_bias = llama.mlp_bias};
}

class LlamaFamily final : public Family {
 public:
  std::string_view name() const override {
    return "llama";
  }

  bool matches(const HfConfig& config) const override {
    return is_model_class(config, "llama", {"LlamaForCausalLM"});
  }

  ParameterTable table(const HfConfig& config) const override {
    return gated_decoder_table(config, sizes_of(LlamaConfig::from(config)));
  }

  std::vector<FamilyTie> ties(const HfConfig&) const override {
    return {{.canonical = "model.embed_tokens.weight", .alias = "lm_head.weight"}};
  }

  bool tied_by_default() const override {
    return false;
  }

  bool is_known_buffer(std::string_view name) const override {
    return is_rotary_buffer(name);
  }

  std::vector<UnitSpec> units(const HfConfig& config) const override {
    std::vector<UnitSpec> units;
    append_layer_units(units, kDecoderStack, LlamaConfig::from(config).num_hidden_layers);
    return units;
  }
};

} // namespace

LlamaConfig LlamaConfig::from(const HfConfig& config) {
  LlamaConfig llama;
  llama.vocab_size = config.integer("vocab_size");
  llama.hidden_size = config.integer("hidden_size");
  llama.intermediate_size = config.integer("intermediate_size");
  llama.num_hidden_layers = config.integer("num_hidden_layers");
  llama.num_attention_heads = config.integer("num_attention_heads");
  require_positive(config, "num_attention_heads", llama.num_attention_heads); // divided by below
  llama.num_key_value_heads = config.integer_or("num_key_value_heads", llama.num_attention_heads);
  require_positive(config, "num_key_value_heads", llama.num_key_value_heads);
  llama.max_position_embeddings = config.integer_or("max_position_embeddings", 2048);
  if (!config.has("head_dim") && llama.hidden_size % llama.num_attention_heads != 0) {
    refuse_config(config,
                  "hidden_size",
                  concat("without head_dim, expected a multiple of num_attention_heads = ",
                         llama.num_attention_heads,
                         ", got ",
                         llama.hidden_size),
                  "write head_dim, or sizes that divide");
  }
  llama.head_dim = config.integer_or("head_dim", llama.hidden_size / llama.num_attention_heads);
  llama.rms_norm_eps = config.number_or("rms_norm_eps", llama.rms_norm_eps);
  llama.attention_dropout = config.number_or("attention_dropout", llama.attention_dropout);
  llama.attention_bias = config.boolean_or("attention_bias", llama.attention_bias);
  llama.mlp_bias = config.boolean_or("mlp_bias", llama.mlp_bias);
  llama.rope = config.rope();
  check_sizes(config, llama);
  check_activation(config);
  check_rope(config, llama.rope);
  llama.pad_token_id = padding_row(config, llama.vocab_size);
  return llama;
}

const Family& llama_family() {
  static const LlamaFamily family;
  return family;
}

} // namespace tieshard
