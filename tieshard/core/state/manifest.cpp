#include "tieshard/core/state/manifest.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/json.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/record_value.h"

namespace tieshard {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kHashDigits = 32;

/// Names of one kind, each of which may stand once.
class Names {
 public:
  explicit Names(std::string kind) : kind_(std::move(kind)) {}

  void add(const RecordValue& value, const std::string& name) {
    if (!seen_.insert(name).second) {
      value.refuse(concat("each ", kind_, " once"), concat("\"", format_name(name), "\" again"));
    }
  }
  bool contains(const std::string& name) const {
    return seen_.contains(name);
  }

 private:
  std::string kind_;
  std::set<std::string> seen_;
};

std::vector<MeshAxisRecord> read_mesh(const RecordValue& value) {
  std::vector<MeshAxisRecord> mesh;
  Names names("axis");
  Shape sizes;
  for (const RecordValue& axis : value.elements()) {
    axis.require_only({"name", "size"});
    mesh.push_back({.name = axis.member("name").text(), .size = axis.member("size").integer(1)});
    names.add(axis.member("name"), mesh.back().name);
    sizes.push_back(mesh.back().size);
  }
  if (!checked_numel(sizes)) {
    value.refuse("a number of ranks below 2^63", to_string(sizes));
  }
  return mesh;
}

OptimizerRecord read_optimizer(const RecordValue& value) {
  value.require_only({"moments", "counters"});
  OptimizerRecord optimizer;
  Names moments("moment");
  for (const RecordValue& moment : value.member("moments").elements()) {
    optimizer.moments.push_back(moment.text());
    moments.add(moment, optimizer.moments.back());
  }
  for (const auto& [name, counter] : value.member("counters").members()) {
    optimizer.counters[name] = counter.integer(0);
  }
  return optimizer;
}

DType read_dtype(const RecordValue& value) {
  const std::optional<DType> dtype = dtype_from_name(value.text());
  if (!dtype) {
    value.refuse("a dtype of the safetensors format, such as \"F32\" or \"BF16\"");
  }
  return *dtype;
}

ParameterRecord read_parameter(const RecordValue& value) {
  value.require_only({"fqn", "dtype", "shape", "dim", "trainable", "stored", "optimizer"});
  ParameterRecord parameter{.fqn = value.member("fqn").text(), .dtype = read_dtype(value.member("dtype"))};
  for (const RecordValue& size : value.member("shape").elements()) {
    parameter.shape.push_back(size.integer(0));
  }
  if (!checked_bytes(parameter.shape, parameter.dtype)) {
    value.member("shape").refuse("a tensor of less than 2^63 bytes", to_string(parameter.shape));
  }
  const auto dims = static_cast<std::int64_t>(parameter.shape.size());
  parameter.dim = static_cast<int>(value.member("dim").integer(-1, std::max<std::int64_t>(dims - 1, -1)));
  parameter.trainable = value.member("trainable").boolean();
  parameter.stored = value.member("stored").boolean();
  if (const RecordValue optimizer = value.member("optimizer"); !optimizer.is_null()) {
    parameter.optimizer = read_optimizer(optimizer);
  }
  return parameter;
}

/// No part of it may lead out of the directory, on any platform.
bool stays_inside(const std::string& file) {
  if (file.find_first_of(std::string_view("\\\0", 2)) != file.npos) {
    return false;
  }
  for (std::size_t begin = 0; begin <= file.size();) {
    const std::size_t end = std::min(file.find('/', begin), file.size());
    const std::string part = file.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") {
      return false;
    }
    begin = end + 1;
  }
  return true;
}

std::vector<FileRecord> read_files(const RecordValue& value) {
  std::vector<FileRecord> files;
  Names names("file");
  for (const RecordValue& file : value.elements()) {
    file.require_only({"name", "bytes", "xxh128"});
    files.push_back({.name = file.member("name").text(),
                     .bytes = static_cast<std::uint64_t>(file.member("bytes").integer(0)),
                     .xxh128 = file.member("xxh128").hexadecimal(kHashDigits)});
    if (!stays_inside(files.back().name) || files.back().name == Manifest::kFileName) {
      file.member("name").refuse("another file of this directory");
    }
    names.add(file.member("name"), files.back().name);
  }
  return files;
}

std::vector<TieRecord> read_ties(const RecordValue& value, const Names& parameters) {
  std::vector<TieRecord> ties;
  Names aliases("alias");
  for (const RecordValue& tie : value.elements()) {
    tie.require_only({"canonical", "alias", "evidence"});
    ties.push_back({.canonical = tie.member("canonical").text(),
                    .alias = tie.member("alias").text(),
                    .evidence = tie.member("evidence").text()});
    if (!parameters.contains(ties.back().canonical)) {
      tie.member("canonical").refuse("the fqn of a parameter");
    }
    if (parameters.contains(ties.back().alias)) {
      tie.member("alias").refuse("a name that no parameter has as its fqn");
    }
    aliases.add(tie.member("alias"), ties.back().alias);
  }
  return ties;
}

OrderedJson to_line(const MeshAxisRecord& axis) {
  return {{"name", axis.name}, {"size", axis.size}};
}

OrderedJson to_line(const ParameterRecord& parameter) {
  OrderedJson optimizer;
  if (parameter.optimizer) {
    optimizer = {{"moments", parameter.optimizer->moments}, {"counters", parameter.optimizer->counters}};
  }
  return {{"fqn", parameter.fqn},
          {"dtype", name(parameter.dtype)},
          {"shape", parameter.shape},
          {"dim", parameter.dim},
          {"trainable", parameter.trainable},
          {"stored", parameter.stored},
          {"optimizer", optimizer}};
}

OrderedJson to_line(const TieRecord& tie) {
  return {{"canonical", tie.canonical}, {"alias", tie.alias}, {"evidence", tie.evidence}};
}

OrderedJson to_line(const FileRecord& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"xxh128", file.xxh128}};
}

/// A list with one element a line.
template <typename Record>
std::string to_lines(const std::vector<Record>& records) {
  std::string lines;
  for (const Record& record : records) {
    lines += concat(lines.empty() ? "\n    " : ",\n    ", to_line(record).dump());
  }
  return records.empty() ? "[]" : concat("[", lines, "\n  ]");
}

} // namespace

const ParameterRecord* Manifest::find(std::string_view fqn) const {
  const auto found = std::ranges::find(parameters, fqn, &ParameterRecord::fqn);
  return found == parameters.end() ? nullptr : &*found;
}

std::string to_json(const Manifest& manifest) {
  return concat("{\n  \"version\": ",
                Manifest::kVersion,
                ",\n  \"id\": ",
                OrderedJson(manifest.id).dump(),
                ",\n  \"step\": ",
                manifest.step,
                ",\n  \"mesh\": ",
                to_lines(manifest.mesh),
                ",\n  \"optimizer\": ",
                OrderedJson(manifest.optimizer).dump(),
                ",\n  \"parameters\": ",
                to_lines(manifest.parameters),
                ",\n  \"ties\": ",
                to_lines(manifest.ties),
                ",\n  \"files\": ",
                to_lines(manifest.files),
                "\n}\n");
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const Json parsed = parse_json(text, where);
  const RecordValue document(parsed, where);
  require_version(document, Manifest::kVersion);
  document.require_only({"version", "id", "step", "mesh", "optimizer", "parameters", "ties", "files"});
  Manifest manifest{.id = document.member("id").hexadecimal(kHashDigits),
                    .step = document.member("step").integer(0),
                    .mesh = read_mesh(document.member("mesh")),
                    .optimizer = document.member("optimizer").any_text()};
  Names fqns("fqn");
  for (const RecordValue& parameter : document.member("parameters").elements()) {
    manifest.parameters.push_back(read_parameter(parameter));
    fqns.add(parameter.member("fqn"), manifest.parameters.back().fqn);
  }
  manifest.ties = read_ties(document.member("ties"), fqns);
  manifest.files = read_files(document.member("files"));
  return manifest;
}

} // namespace tieshard
