#include "tieshard/core/state/saved_model.h"

#include <algorithm>
#include <map>
#include <system_error>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/stored_weights.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

bool holds_steps(const fs::path& directory) {
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, failed)) {
    if (entry.path().filename().string().starts_with("step-") && is_there(entry.path() / Manifest::kFileName)) {
      return true;
    }
  }
  return false;
}

void add_names(SavedModel& model) {
  std::map<std::string, std::vector<const TieRecord*>> aliases;
  for (const TieRecord& tie : model.found.manifest.ties) {
    aliases[tie.canonical].push_back(&tie);
  }
  std::map<std::string, std::string> map;
  for (const ParameterRecord& parameter : model.found.manifest.parameters) {
    model.table.push_back({.fqn = parameter.fqn, .shape = parameter.shape, .dtype = parameter.dtype});
    const auto found = aliases.find(parameter.fqn);
    if (found == aliases.end()) {
      continue;
    }
    TieGroup group{.canonical = parameter.fqn, .aliases = {}};
    for (const TieRecord* tie : found->second) {
      model.table.push_back({.fqn = tie->alias, .shape = parameter.shape, .dtype = parameter.dtype});
      map.emplace(tie->alias, tie->canonical);
      group.aliases.push_back({.name = tie->alias,
                               .reasons = {{.evidence = TieEvidence::kFileMetadata,
                                            .text = concat("manifest.json: ", tie->evidence, " when it was saved")}}});
    }
    model.groups.push_back(std::move(group));
  }
  model.ties = TieRegistry::from_map(map, model.table);
}

} // namespace

std::vector<UnitSpec> SavedModel::units() const {
  return family == nullptr ? std::vector<UnitSpec>{} : family->units(config);
}

bool is_training_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored) || is_there(path / kSingleWeights) || is_there(path / kWeightsIndex)) {
    return false;
  }
  return is_there(path / Manifest::kFileName) || fs::is_directory(path / "checkpoints", ignored) || holds_steps(path);
}

SavedModel open_saved_model(const fs::path& path, Verify verify) {
  SavedModel model{.found = find_checkpoint(path, verify)};
  const fs::path config = model.found.directory / "config.json";
  model.config = HfConfig::parse(is_there(config) ? read_text_file(config) : "{}", "config.json");
  model.family = find_family(model.config);
  add_names(model);
  return model;
}

} // namespace tieshard
