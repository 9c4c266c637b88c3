#include "tieshard/core/families/albert.h"

#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/table_builder.h"

namespace tieshard {
namespace {

constexpr std::string_view kGroups = "albert.encoder.albert_layer_groups";

struct AlbertSizes {
  std::int64_t vocab = 0;
  std::int64_t embedding = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t positions = 0;
  std::int64_t token_types = 0;
  std::int64_t groups = 0;       ///< num_hidden_layers repeat them and add no parameter
  std::int64_t inner_layers = 0; ///< of one group
};

AlbertSizes sizes_of(const HfConfig& config) {
  AlbertSizes sizes;
  sizes.vocab = positive(config, "vocab_size");
  sizes.embedding = positive_or(config, "embedding_size", 128);
  sizes.hidden = positive(config, "hidden_size");
  sizes.intermediate = positive(config, "intermediate_size");
  sizes.positions = positive_or(config, "max_position_embeddings", 512);
  sizes.token_types = positive_or(config, "type_vocab_size", 2);
  sizes.groups = positive_or(config, "num_hidden_groups", 1);
  sizes.inner_layers = positive_or(config, "inner_group_num", 1);
  positive(config, "num_hidden_layers");
  require_layer_count(
      config, "num_hidden_groups", product(config, "num_hidden_groups", sizes.groups, sizes.inner_layers));
  require_multiple(config, "hidden_size", sizes.hidden, "num_attention_heads", positive(config, "num_attention_heads"));
  return sizes;
}

void add_embeddings(TableBuilder& builder, const AlbertSizes& sizes) {
  builder.add("albert.embeddings.word_embeddings.weight", {sizes.vocab, sizes.embedding});
  builder.add("albert.embeddings.position_embeddings.weight", {sizes.positions, sizes.embedding});
  builder.add("albert.embeddings.token_type_embeddings.weight", {sizes.token_types, sizes.embedding});
  builder.layer_norm("albert.embeddings.LayerNorm", sizes.embedding);
  builder.linear("albert.encoder.embedding_hidden_mapping_in", sizes.hidden, sizes.embedding, true);
}

void add_layer(TableBuilder& builder, const std::string& layer, const AlbertSizes& sizes) {
  builder.layer_norm(layer + ".full_layer_layer_norm", sizes.hidden);
  for (const char* projection : {"query", "key", "value", "dense"}) {
    builder.linear(layer + ".attention." + projection, sizes.hidden, sizes.hidden, true);
  }
  builder.layer_norm(layer + ".attention.LayerNorm", sizes.hidden);
  builder.linear(layer + ".ffn", sizes.intermediate, sizes.hidden, true);
  builder.linear(layer + ".ffn_output", sizes.hidden, sizes.intermediate, true);
}

class AlbertFamily final : public Family {
 public:
  std::string_view name() const override {
    return "albert";
  }

  bool matches(const HfConfig& config) const override {
    return is_model_class(config, "albert", {"AlbertForMaskedLM"});
  }

  ParameterTable table(const HfConfig& config) const override {
    const AlbertSizes sizes = sizes_of(config);
    TableBuilder builder(config);
    add_embeddings(builder, sizes);
    for (std::int64_t group = 0; group < sizes.groups; ++group) {
      const std::string layers = layer_name(kGroups, group) + ".albert_layers";
      for (std::int64_t layer = 0; layer < sizes.inner_layers; ++layer) {
        add_layer(builder, layer_name(layers, layer), sizes);
      }
    }
    builder.add("predictions.bias", {sizes.vocab});
    builder.layer_norm("predictions.LayerNorm", sizes.embedding);
    builder.linear("predictions.dense", sizes.embedding, sizes.hidden, true);
    builder.linear("predictions.decoder", sizes.vocab, sizes.embedding, true);
    return builder.take();
  }

  std::vector<FamilyTie> ties(const HfConfig&) const override {
    return {{.canonical = "albert.embeddings.word_embeddings.weight", .alias = "predictions.decoder.weight"},
            {.canonical = "predictions.bias", .alias = "predictions.decoder.bias"}};
  }

  bool tied_by_default() const override {
    return true;
  }

  bool is_known_buffer(std::string_view name) const override {
    return name.ends_with("embeddings.position_ids") || name.ends_with("embeddings.token_type_ids");
  }

  /// A group is one unit, however often its layers run.
  std::vector<UnitSpec> units(const HfConfig& config) const override {
    std::vector<UnitSpec> units;
    append_layer_units(units, kGroups, sizes_of(config).groups);
    return units;
  }
};

} // namespace

const Family& albert_family() {
  static const AlbertFamily family;
  return family;
}

} // namespace tieshard
