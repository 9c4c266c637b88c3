#include "tieshard/cli/saved_text.h"

#include "tieshard/cli/model_view.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/saved_model.h"

namespace tieshard::cli {
namespace {

std::int64_t elements_of(const Manifest& manifest) {
  std::int64_t elements = 0;
  for (const ParameterRecord& parameter : manifest.parameters) {
    elements += numel(parameter.shape);
  }
  return elements;
}

std::string mesh_text(const Manifest& manifest) {
  std::string text;
  for (const MeshAxisRecord& axis : manifest.mesh) {
    text += concat(text.empty() ? "" : " x ", axis.name, " ", axis.size);
  }
  return text.empty() ? "1 rank" : text;
}

void print_saved(const SavedModel& model, bool all, const Stream& out) {
  const Manifest& manifest = model.found.manifest;
  out.text << out.paint(Tone::kStrong, architecture_name(model.config)) << ", a training checkpoint of step "
           << manifest.step << "; " << format_parameters(elements_of(manifest)) << " parameters in "
           << counted(manifest.parameters.size(), "tensor") << "\n";
  Table facts({left(), left()});
  facts.add(
      {"saved",
       concat("by ", mesh_text(manifest), "; optimizer ", manifest.optimizer.empty() ? "none" : manifest.optimizer)});
  for (const TieGroup& group : model.groups) {
    for (const TieAlias& alias : group.aliases) {
      facts.add({"tied", concat(alias.name, " = ", group.canonical, "  (", alias.reasons.front().text, ")")});
    }
  }
  std::uint64_t bytes = 0;
  for (const FileRecord& file : manifest.files) {
    bytes += file.bytes;
  }
  facts.add(
      {"files",
       concat(
           counted(manifest.files.size(), "file"), ", ", format_bytes(bytes), " in ", model.found.directory.string())});
  facts.print(out, 2);
  if (all) {
    Table table({left("parameter"), left("shape"), left("dtype"), right("dim"), left("optimizer state")});
    for (const ParameterRecord& parameter : manifest.parameters) {
      std::string state;
      for (const std::string& moment :
           parameter.optimizer ? parameter.optimizer->moments : std::vector<std::string>()) {
        state += concat(state.empty() ? "" : ", ", moment);
      }
      table.add({parameter.fqn,
                 to_string(parameter.shape),
                 std::string(name(parameter.dtype)),
                 parameter.dim < 0 ? "" : std::to_string(parameter.dim),
                 parameter.trainable ? state : "frozen"});
    }
    table.print(out);
  }
}

OrderedJson document_of(const SavedModel& model) {
  const Manifest& manifest = model.found.manifest;
  OrderedJson parameters = OrderedJson::array();
  for (const ParameterRecord& parameter : manifest.parameters) {
    parameters.push_back({{"name", parameter.fqn},
                          {"shape", parameter.shape},
                          {"dtype", name(parameter.dtype)},
                          {"dim", parameter.dim < 0 ? OrderedJson() : OrderedJson(parameter.dim)},
                          {"trainable", parameter.trainable}});
  }
  OrderedJson mesh = OrderedJson::array();
  for (const MeshAxisRecord& axis : manifest.mesh) {
    mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  }
  OrderedJson files = OrderedJson::array();
  for (const FileRecord& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  return {{"directory", model.found.directory.string()},
          {"step", manifest.step},
          {"mesh", mesh},
          {"optimizer", manifest.optimizer.empty() ? OrderedJson() : OrderedJson(manifest.optimizer)},
          {"parameters", parameters},
          {"groups", to_json(model.groups)},
          {"files", files},
          {"findings", to_json(model.found.findings)}};
}

} // namespace

int show_saved(const std::string& path, bool all, bool json, const Console& console) {
  const SavedModel model = open_saved_model(path, Verify::kSizes);
  if (json) {
    print_json(console.out, document_of(model));
    return kExitSuccess;
  }
  print_saved(model, all, console.out);
  console.out.text.flush();
  print_findings(console.err, model.found.findings);
  return kExitSuccess;
}

} // namespace tieshard::cli
