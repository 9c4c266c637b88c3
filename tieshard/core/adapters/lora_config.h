// tieshard/core/adapters/lora_config.h
//
// What a LoRA adapter is told: ranks, scaling, targets. Read from and written to PEFT's adapter_config.json.
//
// Flow:   adapter_config.json, cli (--lora) -> [this] -> lora_plan
// Source: PEFT 0.21 LoraConfig; Hu et al., "LoRA" (alpha / r); Kalajdzievski, "A Rank Stabilization Scaling Factor"
//         (alpha / sqrt(r)).
//
// Every field of a file is honoured or refused by name; none is ignored.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/adapters/module_pattern.h"

namespace tieshard {

/// What becomes of an adapter on a weight that has other names.
enum class TiedTarget {
  kRefuse, ///< an error that names the other two
  kBoth,   ///< one adapter for all uses of the weight (PEFT's ensure_weight_tying)
  kNamed,  ///< the named use only, as PEFT does without ensure_weight_tying; cannot be merged
};

/// Values of A before the first step. B is 0 (of an embedding: A is 0 and B normal).
enum class LoraInit {
  kKaiming,  ///< uniform within 1 / sqrt(in): PEFT's default
  kGaussian, ///< normal, with standard deviation 1 / r
};

inline constexpr std::int64_t kLargestLoraRank = 1'000'000; ///< of flags and files

struct LoraConfig {
  std::int64_t rank = 8;
  double alpha = 8;
  double dropout = 0; ///< of the adapter's input, in train mode; of embeddings none, as in PEFT
  bool rslora = false;
  ModulePattern targets{};
  ModulePattern excluded{};                           ///< of the targets
  std::vector<std::string> modules_to_save{};         ///< ends of names of modules that are trained whole and saved
  std::vector<std::int64_t> layers_to_transform{};    ///< empty: all; otherwise targets are a list
  std::vector<std::string> layers_pattern{};          ///< names of the lists that those are counted in; empty: any
  std::map<std::string, std::int64_t> rank_pattern{}; ///< by regular expression for the end of a module's name
  std::map<std::string, double> alpha_pattern{};
  TiedTarget tied = TiedTarget::kRefuse;
  LoraInit init = LoraInit::kKaiming;
  std::uint64_t seed = 0;         ///< of the initial values; no field of the file
  std::string base_model{};       ///< base_model_name_or_path
  bool every_name_matches = true; ///< refuse a listed name that no module has; PEFT asks for one that matches

  /// @param where  the file, for errors
  /// @throws InputError json-malformed and the like; adapter-config, naming the field: a kind of adapter that is no
  ///         LoRA, a feature that is not there (DoRA, biases, an initialisation that changes the base, ...), or a value
  ///         that cannot be
  static LoraConfig parse(std::string_view text, const std::string& where);

  /// adapter_config.json, as PEFT reads it.
  std::string to_json() const;
};

} // namespace tieshard
