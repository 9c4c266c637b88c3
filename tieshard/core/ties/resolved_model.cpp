#include "tieshard/core/ties/resolved_model.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tieshard/core/families/name_mapping.h"
#include "tieshard/core/families/stored_names.h"
#include "tieshard/core/families/stored_table.h"
#include "tieshard/core/families/stored_ties.h"

namespace tieshard {
namespace {

Diagnostic unknown_architecture(const Checkpoint& checkpoint) {
  const HfConfig& config = checkpoint.config();
  const std::string shared = lone_shared_embedding(checkpoint);
  return {.level = Level::kWarning,
          .code = Code::kUnknownArchitecture,
          .what = "the model family is not known",
          .where = concat(config.where(), ", model_type"),
          .why = concat("model_type is \"",
                        config.model_type(),
                        "\", architectures begins with \"",
                        config.architecture(),
                        "\"; it loads by the names that are stored, but whether they are all of the model could not "
                        "be checked",
                        shared.empty() ? ""
                                       : concat("; of the embeddings of encoder and decoder only ",
                                                shared,
                                                " is stored, and no other name of it is made up")),
          .fix = "compare the list of parameters with the model's own"};
}

void rename(ResolvedModel& model, NameMapping mapping) {
  if (!mapping.names.empty()) {
    model.checkpoint = std::move(model.checkpoint).renamed(mapping.names);
  }
  std::ranges::move(mapping.findings, std::back_inserter(model.findings));
}

} // namespace

std::vector<UnitSpec> ResolvedModel::units() const {
  return family == nullptr ? std::vector<UnitSpec>{} : family->units(checkpoint.config());
}

ResolvedModel resolve_model(const std::filesystem::path& directory, const ResolveOptions& options) {
  ResolvedModel model{.checkpoint = Checkpoint::open(directory, options.limits)};
  const HfConfig& config = model.checkpoint.config();
  model.family = find_family(config);
  model.findings = model.checkpoint.findings();
  const NameMappingOptions naming{.rename = options.rename};
  if (model.family != nullptr) {
    model.table = model.family->table(config);
    rename(model, find_name_mapping(model.checkpoint, model.table, *model.family, naming));
  } else {
    rename(model, find_wrapper_mapping(model.checkpoint, naming));
    model.table = table_of_stored(model.checkpoint);
    model.findings.push_back(unknown_architecture(model.checkpoint));
  }
  model.ties = TieRegistry::of(model.checkpoint, model.table, options.ties);
  std::ranges::copy(model.ties.findings(), std::back_inserter(model.findings));
  return model;
}

} // namespace tieshard
