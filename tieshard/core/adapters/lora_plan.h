// tieshard/core/adapters/lora_plan.h
//
// Which modules of a model get an adapter, of which sizes, and which parameters are trained whole beside them. Decided
// from whole shapes, before anything is sharded; equal on every rank.
//
// Flow:   lora_config, families/parameter_table.h, ties -> [this] -> adapter_tensors, merge, runtime/adapters
// Source: PEFT's inject_adapter, modules_to_save and ensure_weight_tying.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/core/adapters/lora_config.h"
#include "tieshard/core/families/parameter_table.h"
#include "tieshard/core/plan/init_rule.h"
#include "tieshard/core/ties/resolved_model.h"
#include "tieshard/core/ties/tie_registry.h"

namespace tieshard {

/// A module that can have an adapter: its parameter `<name>.weight` is [out, in] of a linear layer, [in, out] of an
/// embedding (in: the vocabulary).
struct AdaptableModule {
  std::string name;
  bool embedding = false;
  bool output_head = false; ///< left out of "all-linear"
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// Another use of an adapted weight, which the same adapter is added to.
struct TiedUse {
  std::string module;
  bool transposed = false; ///< a linear layer beside an embedding: its A is B^T and its B is A^T
};

/// One adapter: A [rank, in] and B [out, rank]; what is added is scaling * B A (of an embedding: its transpose).
struct LoraTarget {
  std::string module;
  std::string weight; ///< canonical name of the base's parameter
  bool embedding = false;
  bool tied = false; ///< the weight has other names
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t rank = 0;
  double scaling = 1.0;
  std::vector<TiedUse> uses{}; ///< of TiedTarget::kBoth

  /// Names of the two parameters: "<module>.lora_A.weight", of an embedding "<module>.lora_embedding_A".
  std::string a() const;
  std::string b() const;
};

/// A parameter of the base that is trained whole.
struct SavedParameter {
  std::string fqn; ///< canonical
  Shape shape;
  std::vector<std::string> names{}; ///< under which it is saved: its own, and those of its ties
};

struct LoraPlan {
  LoraConfig config;
  std::vector<LoraTarget> targets{};   ///< in registration order
  std::vector<SavedParameter> saved{}; ///< of modules_to_save
};

/// "<module>.lora_A.weight" or "<module>.lora_embedding_A"; `which` is 'A' or 'B'.
std::string lora_name(const std::string& module, bool embedding, char which);

/// The linear layers and embeddings of a model, from its whole shapes. What an embedding is and what the output head
/// is, its family's ties and the usual names tell.
std::vector<AdaptableModule> adaptable_modules(const ResolvedModel& model);

/// @param modules  those of the model, in registration order
/// @param table    every parameter name with its whole shape
/// @throws InputError unknown-target (names, layers or entries of modules_to_save that no module matches, all of one
///         field together; or a setting that leaves no target), adapter-config (patterns that contradict each other, or
///         say different numbers for the uses of one weight), tied-target (a tied weight, and config.tied does not say
///         what then)
LoraPlan plan_lora(const LoraConfig& config,
                   const std::vector<AdaptableModule>& modules,
                   const ParameterTable& table,
                   const TieRegistry& ties);

/// The initial values of every A and B: they depend on seed, name and place, not on the number of ranks.
std::vector<NamedInit> lora_inits(const LoraPlan& plan);

} // namespace tieshard
