#include "tieshard/cli/model_view.h"

#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

ParameterTable table_of_stored(const Checkpoint& checkpoint) {
  ParameterTable table;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    table.push_back({.fqn = tensor.name, .shape = tensor.shape, .dtype = tensor.dtype, .identity = table.size()});
  }
  return table;
}

} // namespace

std::vector<Diagnostic> ModelView::findings() const {
  std::vector<Diagnostic> all = checkpoint.findings();
  all.insert(all.end(), ties.findings().begin(), ties.findings().end());
  return all;
}

ModelView open_model(const std::filesystem::path& directory, const DeclaredTies& declared) {
  ModelView view{.checkpoint = Checkpoint::open(directory)};
  view.family = &require_family(view.checkpoint.config());
  view.table = view.family->table(view.checkpoint.config());
  view.ties = TieRegistry::of(view.checkpoint, view.table, {.explicit_ties = declared});
  return view;
}

ModelView open_any_model(const std::filesystem::path& directory) {
  ModelView view{.checkpoint = Checkpoint::open(directory)};
  view.family = find_family(view.checkpoint.config());
  view.table = view.family != nullptr ? view.family->table(view.checkpoint.config()) : table_of_stored(view.checkpoint);
  view.ties = TieRegistry::of(view.checkpoint, view.table);
  return view;
}

std::string architecture_name(const HfConfig& config) {
  if (!config.architecture().empty()) {
    return config.architecture();
  }
  return config.model_type().empty() ? "model without an architecture" : config.model_type();
}

std::string location(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  return concat(checkpoint.file_name(tensor), " @ ", format_count(static_cast<std::int64_t>(tensor.offset)));
}

std::string counted(std::size_t count, const std::string& one) {
  return concat(format_count(static_cast<std::int64_t>(count)), " ", one, count == 1 ? "" : "s");
}

} // namespace tieshard::cli
