// tieshard/core/families/family.h
//
// What is known of a model family without torch: its parameter names, shapes, ties and units, from config.json alone.
//
// Flow:   checkpoint/hf_config.h -> [this] -> ties, plan; runtime/models is tested to agree with it
// Source: transformers modeling files (`_tied_weights_keys`); one file a family.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tieshard/core/checkpoint/hf_config.h"
#include "tieshard/core/families/decoder_config.h"
#include "tieshard/core/families/parameter_table.h"

namespace tieshard {

/// A tie of a family: `alias` is the same parameter as `canonical`.
struct FamilyTie {
  std::string canonical;
  std::string alias;
  bool always = false; ///< whatever the tie flag says (T5's two embeddings); else only when the model is tied
};

/// The modules that are gathered and reduced together: every parameter whose name begins with `prefix`.
struct UnitSpec {
  std::string name;   ///< fqn of the module, e.g. "model.layers.0"
  std::string prefix; ///< name + "."
};

/// One family of models. All functions are pure.
class Family {
 public:
  virtual ~Family() = default;

  /// Name used in messages, e.g. "llama".
  virtual std::string_view name() const = 0;

  /// True for a config of this family (model_type, else architectures).
  virtual bool matches(const HfConfig& config) const = 0;

  /// Every parameter name with its shape, in the order in which the module registers them; aliases are listed with
  /// their canonical's identity only after TieRegistry has decided, so here each name has its own identity. `dtype` is
  /// the config's, F32 when it names none.
  /// @throws InputError config-missing-key, config-value
  virtual ParameterTable table(const HfConfig& config) const = 0;

  /// The ties that hold, always or when the model is tied.
  virtual std::vector<FamilyTie> ties(const HfConfig& config) const = 0;

  /// Whether the model is tied when config.json has no tie flag.
  virtual bool tied_by_default() const = 0;

  /// True for a stored tensor that is no parameter and that nobody misses: a buffer which the module computes itself,
  /// e.g. an attention mask of old GPT-2 files. It is noted, where another unused tensor is warned of.
  virtual bool is_known_buffer(std::string_view) const {
    return false;
  }

  /// One unit for each decoder layer, in order; what no unit takes belongs to the root.
  virtual std::vector<UnitSpec> units(const HfConfig& config) const = 0;

  /// What the decoder of `config` is made from; nothing for a family that is no gated decoder and has a module of its
  /// own. @throws InputError config-missing-key, config-value
  virtual std::optional<DecoderConfig> decoder(const HfConfig&) const {
    return std::nullopt;
  }
};

/// The family of `config`, or null when none is known.
const Family* find_family(const HfConfig& config);

/// As find_family, for callers that cannot go on without. @throws InputError unknown-architecture, listing the known
/// ones and pointing to docs/new_model.md
const Family& require_family(const HfConfig& config);

} // namespace tieshard
