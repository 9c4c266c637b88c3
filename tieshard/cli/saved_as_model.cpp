#include "tieshard/cli/saved_as_model.h"

#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/checkpoint/stored_weights.h"
#include "tieshard/core/state/export_checkpoint.h"
#include "tieshard/core/state/saved_model.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;

/// The header of an export, and a hole behind it.
void write_as_model(const SavedModel& model, const fs::path& folder) {
  std::vector<TensorSpec> tensors;
  for (const ParameterRecord& parameter : model.found.manifest.parameters) {
    tensors.push_back({.name = parameter.fqn, .dtype = parameter.dtype, .shape = parameter.shape});
  }
  const SafetensorsLayout layout = layout_safetensors(std::move(tensors), {{"format", "pt"}});
  write_text_file(folder / kSingleWeights, layout.prefix);
  fs::resize_file(folder / kSingleWeights, layout.file_bytes);
  write_text_file(folder / "config.json", model.config.json().dump());
}

} // namespace

SavedAsModel::SavedAsModel(const std::string& path, SavedPart part) : path_(path) {
  if (!is_training_checkpoint(path)) {
    return;
  }
  const SavedModel model = open_saved_model(path, Verify::kSizes);
  findings_ = model.found.findings;
  for (Diagnostic& finding : findings_) {
    finding.why += concat("; step ", model.found.manifest.step, " is taken");
  }
  temporary_.emplace("saved");
  path_ = *temporary_ / "model";
  if (part == SavedPart::kValues) {
    export_checkpoint(model.found.directory, path_, {.plain = true});
  } else {
    fs::create_directory(path_);
    write_as_model(model, path_);
  }
}

} // namespace tieshard::cli
