// tieshard/core/checkpoint/hf_config.h
//
// config.json of a Hugging Face checkpoint, in the style of transformers 4 and 5.
//
// Flow:   checkpoint_index -> [this] -> families, ties
// Source: transformers PreTrainedConfig; v4 `rope_theta`, `rope_scaling`, `torch_dtype`; v5 `rope_parameters`, `dtype`.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/base/json.h"

namespace tieshard {

/// Rotary embedding parameters, from either style.
struct RopeConfig {
  std::string type = "default"; ///< default | linear | llama3 | ... as the file says
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 0; ///< 0 when absent
  double partial_rotary_factor = 1.0;                ///< the part of a head that turns, from its first element on
  double beta_fast = 32.0;                           ///< of yarn, and the following
  double beta_slow = 1.0;
  bool truncate = true;                     ///< the bounds of the blend become whole dimensions
  std::optional<double> attention_factor{}; ///< of cos and sin; absent: 0.1 ln(factor) + 1, or by the two mscales
  std::optional<double> mscale{};
  std::optional<double> mscale_all_dim{};
};

/// A tie flag and where in config.json it stands.
struct TieFlag {
  bool value = false;
  std::string where; ///< "tie_word_embeddings" or "text_config.tie_word_embeddings"

  bool is_nested() const {
    return where.starts_with("text_config.");
  }
};

/// A parsed config.json. Cheap to copy (shares the document).
class HfConfig {
 public:
  /// @throws InputError config-malformed (not JSON, not an object), config-value (a field of the wrong type)
  static HfConfig parse(std::string_view text, const std::string& where);

  const std::string& model_type() const noexcept {
    return model_type_;
  }
  /// First entry of `architectures`; empty when absent.
  const std::string& architecture() const noexcept {
    return architecture_;
  }
  /// `dtype` (v5) or `torch_dtype` (v4), at the top or in text_config.
  std::optional<DType> dtype() const noexcept {
    return dtype_;
  }
  /// The tie flag, if the file has one; the top level is asked before text_config.
  const std::optional<TieFlag>& tie_word_embeddings() const noexcept {
    return tie_flag_;
  }
  /// @param layer_type  a key of `rope_parameters`, where it holds one set for each kind of layer (Gemma 3)
  /// @param fallback  what the family has where config.json says nothing: its theta and partial_rotary_factor, and all
  ///                  of it when there is no set at all
  /// @throws InputError config-value, config-missing-key (a set without the numbers that its type needs)
  RopeConfig rope(std::string_view layer_type = {}, const RopeConfig& fallback = {}) const;

  /// Required and optional fields. A null counts as absent. @throws InputError config-missing-key, config-value
  /// (wrong type, or an integer that is negative or above 2^40)
  std::int64_t integer(std::string_view key) const;
  std::int64_t integer_or(std::string_view key, std::int64_t fallback) const;
  std::optional<std::int64_t> optional_integer(std::string_view key) const;
  double number_or(std::string_view key, double fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string string_or(std::string_view key, std::string_view fallback) const;

  /// True when the field is there and not null.
  bool has(std::string_view key) const;

  /// The whole document, for fields without an accessor.
  const Json& json() const noexcept {
    return *json_;
  }
  /// The file's name, for errors.
  const std::string& where() const noexcept {
    return where_;
  }

 private:
  std::shared_ptr<const Json> json_;
  std::string where_;
  std::string model_type_;
  std::string architecture_;
  std::optional<DType> dtype_;
  std::optional<TieFlag> tie_flag_;
};

} // namespace tieshard
