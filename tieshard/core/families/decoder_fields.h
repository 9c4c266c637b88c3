// tieshard/core/families/decoder_fields.h
//
// The fields that all decoders have, from config.json or else from the family's defaults; refused where nothing here
// computes what they ask for.
//
// Flow:   one file a family -> [this] -> decoder_config.h
// Source: transformers' configuration classes (5.24): their fields and defaults.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/decoder_config.h"

namespace tieshard {

/// What a family's configuration class has where config.json leaves a field out. Its other sizes have to be there.
struct DecoderDefaults {
  std::optional<std::int64_t> num_key_value_heads{}; ///< absent: one for each query head
  std::optional<std::int64_t> head_dim{};            ///< absent: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  std::optional<std::int64_t> pad_token_id{};
  std::string_view activation_key = "hidden_act"; ///< empty: the family has one activation, whatever the file says
  std::string_view activation = "silu";
  bool softcaps = false; ///< whether the class has attn_logit_softcapping and final_logit_softcapping
};

/// Sizes, norms' epsilon, activation and padding row; `layers` of full attention, `attention_scale` head_dim ** -0.5.
/// The family sets the rest.
/// @throws InputError config-missing-key, config-value (sizes that do not fit together, another activation, a field of
///         another family that would change the numbers)
DecoderConfig read_decoder(const HfConfig& config, const DecoderDefaults& defaults);

/// What read_rotary accepts and has where config.json says nothing.
struct RotaryDefaults {
  RopeConfig rope{};           ///< see HfConfig::rope
  bool only_default = false;   ///< no scaled type
  bool may_be_partial = false; ///< partial_rotary_factor below 1
};

/// The rotary parameters of all layers or of one kind of layer. Those of llama3 and yarn without an original context
/// get the model's. @throws InputError config-value, config-missing-key
RopeConfig read_rotary(const HfConfig& config,
                       const DecoderConfig& decoder,
                       const RotaryDefaults& defaults = {},
                       std::string_view layer_type = {});

/// `num_local_experts`, or `num_experts` as version 4 wrote it. May be 0. @throws InputError config-value, also when
/// the two differ
std::int64_t expert_count(const HfConfig& config, std::int64_t fallback);

/// The fields that require_experts names in its errors.
struct ExpertKeys {
  std::string_view count = "num_local_experts";
  std::string_view intermediate_size = "intermediate_size"; ///< of one expert
};

/// @throws InputError config-value when a token cannot go through `experts.chosen` of `experts.count`, an expert has no
///         size, or all layers of `decoder` together would have more experts than any model
void require_experts(const HfConfig& config,
                     const DecoderConfig& decoder,
                     const ExpertsConfig& experts,
                     const ExpertKeys& keys = {});

/// cap, or 0 where the file has a null: no cap. @throws InputError config-value unless above 0
double softcap(const HfConfig& config, std::string_view key, std::optional<double> fallback);

/// For a field that changes the numbers and that nothing here computes.
/// @throws InputError config-value when it is true
void refuse_true(const HfConfig& config, std::string_view key);

/// @throws InputError config-value when it is not `neutral`
void refuse_other_number(const HfConfig& config, std::string_view key, double neutral);

/// True when the field is there and null: for fields whose default is not "none".
bool is_null(const HfConfig& config, std::string_view key);

} // namespace tieshard
