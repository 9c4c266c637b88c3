// python/src/model_source.h
//
// Where a torch module's parameters come from: its own names over the files, resolved once, then read box by box.
//
// Flow:   tieshard.load (table of the module) -> [this] -> core/ties, core/plan, core/io
// Source: what resolve_model and load_local_shards do, with the module's table in the place of a family's.

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tieshard/core/families/family.h"
#include "tieshard/core/plan/weight_source.h"
#include "tieshard/core/ties/resolved_model.h"

namespace tieshard::python {

struct ModelSourceOptions {
  std::map<std::string, std::string> names{}; ///< stored -> the module's, as the caller knows them already
  std::vector<std::pair<std::string, std::string>> declared{}; ///< alias and canonical, as the module's class says
  TieOptions ties{};
  bool rename = true;
  std::map<std::string, std::string> inits{}; ///< name -> rule, for parameters that no file holds
};

/// A module taken for a family: the ties are those that it has or declares, and it knows no buffers.
class ModuleFamily : public Family {
 public:
  explicit ModuleFamily(const ModelSourceOptions& options, const TieRegistry& ties);
  std::string_view name() const override {
    return "module";
  }
  bool matches(const HfConfig&) const override {
    return true;
  }
  ParameterTable table(const HfConfig&) const override {
    return {};
  }
  std::vector<FamilyTie> ties(const HfConfig&) const override {
    return ties_;
  }
  bool tied_by_default() const override {
    return true;
  }
  std::vector<UnitSpec> units(const HfConfig&) const override {
    return {};
  }

 private:
  std::vector<FamilyTie> ties_;
};

/// Immutable; may be read from by several threads.
class ModelSource {
 public:
  /// @param table  of the module, under its own names
  /// @throws InputError whatever Checkpoint::open, find_name_mapping, TieRegistry::of and find_weight_sources throw
  ModelSource(const std::filesystem::path& directory, const ParameterTable& table, const ModelSourceOptions& options);

  ModelSource(const ModelSource&) = delete;
  ModelSource& operator=(const ModelSource&) = delete;

  const Checkpoint& checkpoint() const noexcept {
    return checkpoint_;
  }
  /// Of one rank: parameters are whole in it.
  const ShardPlan& plan() const noexcept {
    return plan_;
  }
  const WeightSources& sources() const noexcept {
    return sources_;
  }
  /// Of the parameter with this canonical name or alias. @throws UsageError unknown-parameter
  std::size_t index_of(const std::string& name) const;

  /// Warnings and notes of checkpoint, names, ties and sources, in that order.
  const std::vector<Diagnostic>& findings() const noexcept {
    return findings_;
  }

 private:
  std::vector<Diagnostic> findings_; // first: what makes the others adds to it
  Checkpoint checkpoint_;
  ShardPlan plan_;
  WeightSources sources_;
};

} // namespace tieshard::python
