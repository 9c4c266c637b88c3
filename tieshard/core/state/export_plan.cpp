#include "tieshard/core/state/export_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/safetensors_index.h"
#include "tieshard/core/families/family.h"

namespace tieshard {
namespace {

/// What config.json asks of names and shapes.
class ExpectedModel {
 public:
  ExpectedModel(const HfConfig& config, std::string where) : where_(std::move(where)) {
    family_ = find_family(config);
    if (family_ == nullptr) {
      return;
    }
    for (ParameterInfo& info : family_->table(config)) {
      std::string name = info.fqn;
      table_.emplace(std::move(name), std::move(info));
    }
    vocabulary_ = config.optional_integer("vocab_size");
    const bool tied = config.tie_word_embeddings() ? config.tie_word_embeddings()->value : family_->tied_by_default();
    for (FamilyTie& tie : family_->ties(config)) {
      if (tie.always || tied) {
        ties_.push_back(std::move(tie));
      }
    }
  }

  /// The shape that the tensor leaves with. @throws InputError shape-mismatch
  Shape shape_of(const ShardedTensor& tensor, std::vector<Diagnostic>& findings) const {
    const auto found = table_.find(tensor.name);
    if (found == table_.end() || tensor.shape == found->second.shape) {
      return tensor.shape;
    }
    const Shape& wanted = found->second.shape;
    Shape turned = wanted;
    if (found->second.stored_transposed && turned.size() >= 2) {
      std::swap(turned[turned.size() - 1], turned[turned.size() - 2]);
      if (turned == tensor.shape) {
        return turned;
      }
    }
    const bool padded = !wanted.empty() && wanted.size() == tensor.shape.size() && vocabulary_ == wanted[0] &&
                        tensor.shape[0] > wanted[0] &&
                        std::equal(wanted.begin() + 1, wanted.end(), tensor.shape.begin() + 1);
    if (!padded) {
      throw InputError({.code = Code::kShapeMismatch,
                        .what = "a stored shape is not the one that the config asks for",
                        .where = concat(where_, ", ", tensor.name),
                        .why = concat("expected ", to_string(wanted), ", got ", to_string(tensor.shape)),
                        .fix = "give the config.json of this model; or a file of the checkpoint is missing"});
    }
    findings.push_back({.level = Level::kNote,
                        .code = Code::kUnusedTensor,
                        .what = "rows beyond the vocabulary are left out of an export",
                        .where = concat(where_, ", ", tensor.name),
                        .why = concat("expected ",
                                      to_string(wanted),
                                      " by vocab_size, got ",
                                      to_string(tensor.shape),
                                      ": ",
                                      tensor.shape[0] - wanted[0],
                                      " rows of padding"),
                        .fix = "nothing is lost; raise vocab_size in config.json if the rows are meant"});
    return wanted;
  }

  /// Each parameter is there, or tied to one that is. Where no name is the model's, none is held against it.
  void require_all(const std::vector<const ShardedTensor*>& tensors) const {
    std::set<std::string_view> stored;
    bool any = false;
    for (const ShardedTensor* tensor : tensors) {
      stored.insert(tensor->name);
      any = any || table_.contains(tensor->name);
    }
    std::vector<std::string> missing;
    for (const auto& [name, info] : table_) {
      const auto tied_to_stored = [&, &wanted = name](const FamilyTie& tie) {
        return (tie.alias == wanted && stored.contains(tie.canonical)) ||
               (tie.canonical == wanted && stored.contains(tie.alias));
      };
      const bool encoded = stored.contains(concat(name, "_blocks")) && stored.contains(concat(name, "_scales"));
      if (!stored.contains(name) && !encoded && std::ranges::none_of(ties_, tied_to_stored)) {
        missing.push_back(name);
      }
    }
    if (any && !missing.empty()) {
      throw InputError({.code = Code::kMissingParameter,
                        .what = "a parameter has no value in the checkpoint",
                        .where = concat(where_, ", ", format_names(missing)),
                        .why = concat("expected the ",
                                      table_.size(),
                                      " names of the ",
                                      family_->name(),
                                      " model that config.json describes, got none for ",
                                      missing.size()),
                        .fix = "give the config.json of this model; or a file of the checkpoint is missing"});
    }
  }

 private:
  std::string where_;
  const Family* family_ = nullptr;
  std::map<std::string, ParameterInfo, std::less<>> table_;
  std::vector<FamilyTie> ties_;
  std::optional<std::int64_t> vocabulary_;
};

void require_base(const Manifest& manifest, const std::string& where) {
  std::vector<std::string> absent;
  for (const ParameterRecord& parameter : manifest.parameters) {
    if (!parameter.stored) {
      absent.push_back(parameter.fqn);
    }
  }
  if (!absent.empty()) {
    throw InputError({.code = Code::kMissingParameter,
                      .what = "a checkpoint of an adapter does not hold the base model",
                      .where = concat(where, ", ", format_names(absent)),
                      .why = concat("expected every parameter's values, got none for ", absent.size()),
                      .fix = "go on from it with train --resume, which exports the adapter at its end; then "
                             "tieshard merge-adapter BASE ADAPTER OUT"});
  }
}

/// The parameters, in registration order where a manifest tells it, else by name.
std::vector<const ShardedTensor*> chosen_tensors(const ShardedFiles& files,
                                                 const Manifest* manifest,
                                                 std::vector<std::string>& left_out) {
  const ParameterNames names(files, manifest);
  std::vector<const ShardedTensor*> tensors;
  std::map<std::string_view, std::size_t> order;
  for (std::size_t i = 0; manifest != nullptr && i < manifest->parameters.size(); ++i) {
    order.emplace(manifest->parameters[i].fqn, i);
  }
  for (const ShardedTensor& tensor : files.tensors()) {
    if (names.is_optimizer_state(tensor.name)) {
      left_out.push_back(tensor.name);
    } else {
      tensors.push_back(&tensor);
    }
  }
  const auto place = [&order](const ShardedTensor* tensor) {
    const auto found = order.find(tensor->name);
    return found == order.end() ? order.size() : found->second;
  };
  std::ranges::stable_sort(tensors, {}, place);
  for (std::size_t i = 0; manifest != nullptr && i < manifest->ties.size(); ++i) {
    left_out.push_back(manifest->ties[i].alias);
  }
  return tensors;
}

/// Lays the file's tensors out, and puts them into the layout's order.
ExportedFile lay_out(std::string name, std::vector<ExportedTensor> tensors) {
  std::vector<TensorSpec> specs;
  std::map<std::string_view, ExportedTensor*> by_name;
  for (ExportedTensor& tensor : tensors) {
    specs.push_back({.name = tensor.tensor->name, .dtype = tensor.dtype, .shape = tensor.shape});
    by_name.emplace(tensor.tensor->name, &tensor);
  }
  ExportedFile file{
      .name = std::move(name), .layout = layout_safetensors(std::move(specs), {{"format", "pt"}}), .tensors = {}};
  for (const TensorEntry& entry : file.layout.header.tensors) {
    file.tensors.push_back(std::move(*by_name.at(entry.name)));
  }
  return file;
}

} // namespace

std::optional<DType> exported_dtype(const HfConfig& config) {
  const bool quantised = config.has("quantization_config");
  return config.dtype() || !quantised ? config.dtype() : std::optional(DType::kBF16);
}

ExportPlan plan_export(const ShardedFiles& files,
                       const Manifest* manifest,
                       const HfConfig* config,
                       const ExportCheckpointOptions& options) {
  const std::string where = files.directory().string();
  if (manifest != nullptr) {
    require_base(*manifest, where);
  }
  ExportPlan plan;
  const std::vector<const ShardedTensor*> tensors = chosen_tensors(files, manifest, plan.left_out);
  if (tensors.empty()) {
    throw InputError(
        {.code = Code::kNoWeights,
         .what = "the directory holds no safetensors weights",
         .where = where,
         .why = concat("expected parameters, got ", plan.left_out.size(), " tensors, none of which is one"),
         .fix = "pass the directory that the model's tensors are in"});
  }
  std::optional<ExpectedModel> model;
  std::optional<DType> dtype = options.dtype;
  if (config != nullptr) {
    model.emplace(*config, where);
    model->require_all(tensors);
    dtype = dtype || options.plain ? dtype : exported_dtype(*config);
  }
  std::vector<std::vector<ExportedTensor>> parts(1);
  std::uint64_t filled = 0;
  for (const ShardedTensor* tensor : tensors) {
    ExportedTensor exported{.tensor = tensor, .dtype = tensor->dtype, .shape = tensor->shape};
    if (dtype && is_wide_float(tensor->dtype)) {
      exported.dtype = *dtype;
    }
    if (model) {
      exported.shape = model->shape_of(*tensor, plan.findings);
    }
    const std::uint64_t bytes = checked_bytes(exported.shape, exported.dtype).value();
    if (filled > 0 && filled + bytes > options.max_shard_bytes) {
      parts.emplace_back();
      filled = 0;
    }
    parts.back().push_back(std::move(exported));
    filled += bytes;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    plan.files.push_back(lay_out(weights_file_name(i, parts.size()), std::move(parts[i])));
  }
  return plan;
}

std::string index_of(const std::vector<ExportedFile>& files) {
  std::map<std::string, std::string> weight_map;
  std::uint64_t total = 0;
  for (const ExportedFile& file : files) {
    for (const TensorEntry& tensor : file.layout.header.tensors) {
      weight_map[tensor.name] = file.name;
      total += tensor.end - tensor.begin;
    }
  }
  return safetensors_index_text(weight_map, total);
}

} // namespace tieshard
