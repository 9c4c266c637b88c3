#include "tieshard/core/ties/resolved_model.h"

namespace tieshard {
namespace {

ParameterTable table_of_stored(const Checkpoint& checkpoint) {
  ParameterTable table;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    table.push_back({.fqn = tensor.name, .shape = tensor.shape, .dtype = tensor.dtype, .identity = table.size()});
  }
  return table;
}

} // namespace

std::vector<UnitSpec> ResolvedModel::units() const {
  return family == nullptr ? std::vector<UnitSpec>{} : family->units(checkpoint.config());
}

ResolvedModel resolve_model(const std::filesystem::path& directory, const ResolveOptions& options) {
  ResolvedModel model{.checkpoint = Checkpoint::open(directory, options.limits)};
  model.family = find_family(model.checkpoint.config());
  model.table =
      model.family != nullptr ? model.family->table(model.checkpoint.config()) : table_of_stored(model.checkpoint);
  model.ties = TieRegistry::of(model.checkpoint, model.table, options.ties);
  model.findings = model.checkpoint.findings();
  model.findings.insert(model.findings.end(), model.ties.findings().begin(), model.ties.findings().end());
  return model;
}

} // namespace tieshard
