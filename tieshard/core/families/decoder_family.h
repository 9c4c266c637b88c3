// tieshard/core/families/decoder_family.h
//
// A family of decoders: everything that core knows of it follows from its DecoderConfig.
//
// Flow: one file a family -> [this] -> family.h

#pragma once

#include <string_view>

#include "tieshard/core/families/family.h"

namespace tieshard {

/// What a family says of itself.
struct DecoderTraits {
  std::string_view name;         ///< in messages; mostly the model_type
  std::string_view model_type;   ///< of config.json
  std::string_view architecture; ///< the class with a language model's head
  bool tied_by_default = false;
  DecoderConfig (*decoder)(const HfConfig& config) = nullptr; ///< throws InputError for what cannot be computed
};

class DecoderFamily final : public Family {
 public:
  constexpr explicit DecoderFamily(const DecoderTraits& traits) : traits_(traits) {}

  std::string_view name() const override;
  bool matches(const HfConfig& config) const override;
  ParameterTable table(const HfConfig& config) const override;
  std::vector<FamilyTie> ties(const HfConfig& config) const override;
  bool tied_by_default() const override;
  bool is_known_buffer(std::string_view name) const override;
  std::vector<UnitSpec> units(const HfConfig& config) const override;
  std::optional<DecoderConfig> decoder(const HfConfig& config) const override;

 private:
  DecoderTraits traits_;
};

} // namespace tieshard
