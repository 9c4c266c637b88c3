#include "tieshard/core/families/llama.h"

#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

/// More is a damaged file: the table would fill the memory before the first weight is looked for.
constexpr std::int64_t kMostLayers = 100'000;

[[noreturn]] void refuse(const HfConfig& config, std::string_view key, const std::string& why, const std::string& fix) {
  throw InputError({.code = Code::kConfigValue,
                    .what = "a field of config.json has a value that cannot be used",
                    .where = concat(config.where(), ", ", key),
                    .why = why,
                    .fix = fix});
}

void require_positive(const HfConfig& config, std::string_view key, std::int64_t value) {
  if (value < 1) {
    refuse(config, key, concat("expected at least 1, got ", value), "write the size that the weights were made with");
  }
}

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
  if (llama.num_hidden_layers > kMostLayers) {
    refuse(config,
           "num_hidden_layers",
           concat("expected at most ", kMostLayers, ", got ", llama.num_hidden_layers),
           "write the number of layers that the weights have");
  }
  if (!checked_numel({llama.num_attention_heads, llama.head_dim})) {
    refuse(config,
           "head_dim",
           concat("num_attention_heads * head_dim overflows: ", llama.num_attention_heads, " * ", llama.head_dim),
           "write the sizes that the weights were made with");
  }
  if (llama.num_attention_heads % llama.num_key_value_heads != 0) {
    refuse(config,
           "num_key_value_heads",
           concat("expected a divisor of num_attention_heads = ",
                  llama.num_attention_heads,
                  ", got ",
                  llama.num_key_value_heads),
           "give each key/value head the same number of query heads");
  }
  if (llama.head_dim % 2 != 0) {
    refuse(config,
           "head_dim",
           concat("rotary embedding turns pairs, so expected an even size, got ", llama.head_dim),
           "write the head size that the weights were made with");
  }
}

void check_activation(const HfConfig& config) {
  const std::string activation = config.string_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") { // two names of one function in transformers
    refuse(config,
           "hidden_act",
           concat("supported: silu; got \"", activation, "\""),
           "use a checkpoint of this family that was trained with silu");
  }
}

void check_rope(const HfConfig& config, const RopeConfig& rope) {
  if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3") {
    refuse(config,
           "rope_type",
           concat("supported: default, linear, llama3; got \"", rope.type, "\""),
           "use a checkpoint with a supported rope type");
  }
  if (!(rope.theta > 0.0)) {
    refuse(config, "rope_theta", concat("expected above 0, got ", rope.theta), "write the base, mostly 10000");
  }
  if (rope.type == "default") {
    return;
  }
  if (!(rope.factor > 0.0)) {
    refuse(config, "factor", concat("expected above 0, got ", rope.factor), "write the rope scaling factor");
  }
  if (rope.type == "llama3" && !(rope.low_freq_factor > 0.0 && rope.high_freq_factor > rope.low_freq_factor)) {
    refuse(config,
           "low_freq_factor",
           concat("expected 0 < low_freq_factor < high_freq_factor, got ",
                  rope.low_freq_factor,
                  " and ",
                  rope.high_freq_factor),
           "write both factors as the model was trained, mostly 1 and 4");
  }
  if (rope.type == "llama3" && rope.original_max_position_embeddings < 1) {
    refuse(config,
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
    refuse(config,
           "pad_token_id",
           concat("expected a row of the vocabulary of ", vocab_size, ", got ", field->dump()),
           "write a token of the vocabulary, or null");
  }
  return row;
}

/// Appends parameters in registration order, each with an identity of its own.
class TableBuilder {
 public:
  explicit TableBuilder(DType dtype) : dtype_(dtype) {}

  void add(const std::string& fqn, Shape shape) {
    table_.push_back({.fqn = fqn, .shape = std::move(shape), .dtype = dtype_, .identity = table_.size() + 1});
  }

  void linear(const std::string& module, std::int64_t out, std::int64_t in, bool bias) {
    add(module + ".weight", {out, in});
    if (bias) {
      add(module + ".bias", {out});
    }
  }

  ParameterTable take() {
    return std::move(table_);
  }

 private:
  DType dtype_;
  ParameterTable table_;
};

std::string layer_name(std::int64_t layer) {
  return concat("model.layers.", layer);
}

class LlamaFamily final : public Family {
 public:
  std::string_view name() const override {
    return "llama";
  }

  bool matches(const HfConfig& config) const override {
    const bool causal = config.architecture() == "LlamaForCausalLM";
    if (config.model_type() == "llama") {
      return causal || config.architecture().empty(); // a classifier of this model_type has other parameters
    }
    return config.model_type().empty() && causal;
  }

  ParameterTable table(const HfConfig& config) const override {
    const LlamaConfig llama = LlamaConfig::from(config);
    const std::int64_t hidden = llama.hidden_size;
    const std::int64_t query = llama.num_attention_heads * llama.head_dim;
    const std::int64_t key_value = llama.num_key_value_heads * llama.head_dim;
    TableBuilder builder(config.dtype().value_or(DType::kF32));
    builder.add("model.embed_tokens.weight", {llama.vocab_size, hidden});
    for (std::int64_t layer = 0; layer < llama.num_hidden_layers; ++layer) {
      const std::string attention = layer_name(layer) + ".self_attn.";
      builder.linear(attention + "q_proj", query, hidden, llama.attention_bias);
      builder.linear(attention + "k_proj", key_value, hidden, llama.attention_bias);
      builder.linear(attention + "v_proj", key_value, hidden, llama.attention_bias);
      builder.linear(attention + "o_proj", hidden, query, llama.attention_bias);
      const std::string mlp = layer_name(layer) + ".mlp.";
      builder.linear(mlp + "gate_proj", llama.intermediate_size, hidden, llama.mlp_bias);
      builder.linear(mlp + "up_proj", llama.intermediate_size, hidden, llama.mlp_bias);
      builder.linear(mlp + "down_proj", hidden, llama.intermediate_size, llama.mlp_bias);
      builder.add(layer_name(layer) + ".input_layernorm.weight", {hidden});
      builder.add(layer_name(layer) + ".post_attention_layernorm.weight", {hidden});
    }
    builder.add("model.norm.weight", {hidden});
    builder.add("lm_head.weight", {llama.vocab_size, hidden});
    return builder.take();
  }

  std::vector<FamilyTie> ties(const HfConfig&) const override {
    return {{.canonical = "model.embed_tokens.weight", .alias = "lm_head.weight"}};
  }

  bool tied_by_default() const override {
    return false;
  }

  std::vector<UnitSpec> units(const HfConfig& config) const override {
    const LlamaConfig llama = LlamaConfig::from(config);
    std::vector<UnitSpec> units;
    for (std::int64_t layer = 0; layer < llama.num_hidden_layers; ++layer) {
      units.push_back({.name = layer_name(layer), .prefix = layer_name(layer) + "."});
    }
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
    refuse(config,
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
