#include "tieshard/core/families/decoder_family.h"

#include "tieshard/core/families/config_sizes.h"
#include "tieshard/core/families/decoder_table.h"
#include "tieshard/core/families/table_builder.h"

namespace tieshard {

std::string_view DecoderFamily::name() const {
  return traits_.name;
}

bool DecoderFamily::matches(const HfConfig& config) const {
  return is_model_class(config, traits_.model_type, {traits_.architecture});
}

ParameterTable DecoderFamily::table(const HfConfig& config) const {
  return decoder_table(config, traits_.decoder(config));
}

std::vector<FamilyTie> DecoderFamily::ties(const HfConfig&) const {
  return {{.canonical = "model.embed_tokens.weight", .alias = "lm_head.weight"}};
}

bool DecoderFamily::tied_by_default() const {
  return traits_.tied_by_default;
}

bool DecoderFamily::is_known_buffer(std::string_view name) const {
  return is_rotary_buffer(name);
}

std::vector<UnitSpec> DecoderFamily::units(const HfConfig& config) const {
  std::vector<UnitSpec> units;
  append_layer_units(units, kDecoderStack, static_cast<std::int64_t>(traits_.decoder(config).layers.size()));
  return units;
}

std::optional<DecoderConfig> DecoderFamily::decoder(const HfConfig& config) const {
  return traits_.decoder(config);
}

} // namespace tieshard
