#include "tieshard/core/adapters/merge.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "tieshard/core/adapters/adapter_file.h"
#include "tieshard/core/adapters/transposed.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/checkpoint/companion_files.h"
#include "tieshard/core/checkpoint/safetensors_index.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/io/convert.h"
#include "tieshard/core/state/staged_output.h"
#include "tieshard/core/ties/tie_flag.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSliceBytes = 4 << 20; ///< of float32 values that are worked on at once

/// What is added to one weight [rows, columns]: left [rows, rank] times right [rank, columns].
struct Delta {
  std::vector<float> left;
  std::vector<float> right;
  std::int64_t rank = 0;
};

/// How the tensors of the base change, by canonical name.
struct Changes {
  std::map<std::string, Delta> deltas;
  std::map<std::string, const TensorEntry*> replaced; ///< by a tensor of the adapter's file
};

Delta make_delta(const LoraTarget& target, std::vector<float> a, std::vector<float> b) {
  if (target.embedding) { // [in, out] = A^T B^T
    a = transposed(a, target.rank, target.in);
    b = transposed(b, target.out, target.rank);
    std::swap(a, b);
  }
  for (float& value : b) {
    value *= static_cast<float>(target.scaling);
  }
  return {.left = std::move(b), .right = std::move(a), .rank = target.rank};
}

Changes read_changes(const AdapterFile& adapter, const LoraPlan& plan) {
  Changes changes;
  std::map<std::string, const TensorEntry*> stored; // of each parameter
  for (const MatchedTensor& matched : adapter.match(plan)) {
    if (matched.tensor.role == AdapterTensorRole::kBase) {
      changes.replaced[matched.tensor.parameter] = matched.entry;
    } else if (matched.tensor.role == AdapterTensorRole::kOwn) {
      stored[matched.tensor.parameter] = matched.entry;
    }
  }
  for (const LoraTarget& target : plan.targets) {
    changes.deltas[target.weight] =
        make_delta(target, adapter.read(*stored.at(target.a())), adapter.read(*stored.at(target.b())));
  }
  for (const SavedParameter& saved : plan.saved) {
    changes.replaced[saved.fqn] = stored.at(saved.fqn);
  }
  return changes;
}

/// One weight would need two values afterwards.
void refuse_parted_ties(const LoraPlan& plan, const fs::path& adapter) {
  for (const LoraTarget& target : plan.targets) {
    if (target.tied && plan.config.tied != TiedTarget::kBoth) {
      throw InputError(
          {.code = Code::kTiedTarget,
           .what = "an adapter for one use of a tied weight cannot be merged",
           .where = concat(adapter.string(), ", ", target.module),
           .why = concat(target.weight, " is the weight of several modules; merged, all of them would change"),
           .fix = "say --lora-tied both if the adapter is meant for all of them; use the base and the adapter side by "
                  "side; or untie the base first, with a copy of the weight under each name and tie_word_embeddings "
                  "false"});
    }
  }
}

/// Every change has a stored weight to be made in.
void require_stored(const ResolvedModel& model, const Changes& changes) {
  const auto require = [&](const std::string& canonical) {
    if (model.ties.source(model.checkpoint, canonical) == nullptr) {
      throw InputError({.code = Code::kMissingParameter,
                        .what = "an adapter is for a weight that the base does not store",
                        .where = concat(model.checkpoint.directory().string(), ", ", canonical),
                        .fix = "give the base model that the adapter was trained for, with its plain weights"});
    }
  };
  for (const auto& [canonical, delta] : changes.deltas) {
    require(canonical);
  }
  for (const auto& [canonical, entry] : changes.replaced) {
    require(canonical);
  }
  for (const ParameterInfo& info : model.table) {
    if (info.stored_transposed && changes.deltas.contains(info.fqn)) {
      throw InputError({.code = Code::kShapeMismatch,
                        .what = "a stored weight has another shape than its adapter",
                        .where = concat(model.checkpoint.directory().string(), ", ", info.fqn),
                        .why = "it is stored as [in, out]",
                        .fix = "merge the adapter with PEFT (merge_and_unload)"});
    }
  }
}

/// Adds rows [first, first + rows) of the product to `values`, row by row in the cache.
void add_rows(const Delta& delta, std::int64_t first, std::int64_t rows, std::int64_t columns, float* values) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* const into = values + row * columns;
    for (std::int64_t k = 0; k < delta.rank; ++k) {
      const float factor = delta.left[static_cast<std::size_t>((first + row) * delta.rank + k)];
      const float* const from = delta.right.data() + k * columns;
      for (std::int64_t column = 0; column < columns; ++column) {
        into[column] += factor * from[column];
      }
    }
  }
}

/// A tensor of the merged checkpoint.
struct MergedTensor {
  std::string name; ///< in its file
  std::string canonical;
  const StoredTensor* source = nullptr; ///< of the base
  std::size_t file = 0;                 ///< as of the base's files
};

std::uint64_t bytes_of(const std::vector<MergedTensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const MergedTensor& tensor : tensors) {
    bytes += tensor.source->bytes;
  }
  return bytes;
}

/// The name that `fqn` has in the files: with the prefix that `stored` has there, if any.
std::string name_in_file(const Checkpoint& base, const std::string& fqn, const StoredTensor& stored) {
  if (const StoredTensor* own = base.find(fqn); own != nullptr) {
    return own->stored_name;
  }
  const bool prefixed = stored.stored_name.ends_with(stored.name);
  return prefixed ? stored.stored_name.substr(0, stored.stored_name.size() - stored.name.size()) + fqn : fqn;
}

/// Whether whoever reads config.json knows all the ties of `group`.
bool is_told_by_config(const ResolvedModel& model, const TieGroup& group) {
  std::set<std::string> told;
  if (model.family != nullptr) {
    for (const FamilyTie& tie : model.family->ties(model.checkpoint.config())) {
      told.insert({tie.canonical, tie.alias});
    }
  }
  return told.contains(group.canonical) &&
         std::ranges::all_of(group.aliases, [&](const TieAlias& alias) { return told.contains(alias.name); });
}

/// What a reader who has no flags makes the same model of. A tie that config.json tells: one copy, under the canonical
/// name. Any other tie: the one value under every name that was stored, or that the caller tied.
std::vector<MergedTensor> merged_tensors(const ResolvedModel& model) {
  const Checkpoint& base = model.checkpoint;
  std::map<std::string, const TieGroup*> groups;
  for (const TieGroup& group : model.ties.groups()) {
    groups[group.canonical] = &group;
  }
  std::vector<MergedTensor> tensors;
  for (const StoredTensor& stored : base.tensors()) {
    const std::string canonical = model.ties.canonical(stored.name);
    const StoredTensor* const source = model.ties.source(base, canonical);
    const auto group = groups.find(canonical);
    if (group == groups.end()) {
      tensors.push_back({stored.stored_name, canonical, &stored, stored.file});
    } else if (!is_told_by_config(model, *group->second)) {
      tensors.push_back({stored.stored_name, canonical, source, stored.file});
    } else if (source == &stored) {
      tensors.push_back({name_in_file(base, canonical, stored), canonical, source, stored.file});
    }
  }
  for (const auto& [canonical, group] : groups) {
    const StoredTensor* const source = model.ties.source(base, canonical);
    for (const TieAlias& alias : group->aliases) {
      const bool asked = std::ranges::any_of(
          alias.reasons, [](const TieReason& reason) { return reason.evidence == TieEvidence::kExplicitMap; });
      if (asked && source != nullptr && base.find(alias.name) == nullptr && !is_told_by_config(model, *group)) {
        tensors.push_back({name_in_file(base, alias.name, *source), canonical, source, source->file});
      }
    }
  }
  return tensors;
}

/// A name that the caller untied needs a value of its own.
void require_untied_stored(const ResolvedModel& model) {
  for (const ParameterInfo& info : model.table) {
    const std::string untied = model.ties.untied_by(info.fqn);
    if (!untied.empty() && model.ties.source(model.checkpoint, model.ties.canonical(info.fqn)) == nullptr) {
      throw InputError({.code = Code::kMissingParameter,
                        .what = "a parameter has no value in the checkpoint",
                        .where = concat(model.checkpoint.directory().string(), ", ", info.fqn),
                        .why = "expected a stored tensor, since it is untied, got none",
                        .fix = concat("leave --untie ", untied, " out, or store a value for ", info.fqn)});
    }
  }
}

/// One tensor on its way from the base to the merged file.
class TensorMerger {
 public:
  TensorMerger(const AdapterFile& adapter, const Changes& changes) : adapter_(adapter), changes_(changes) {}

  /// @param canonical  of the tensor's name in the model
  void write(const Checkpoint& base,
             const StoredTensor& tensor,
             const std::string& canonical,
             const File& out,
             std::uint64_t at) {
    const auto added = changes_.deltas.find(canonical);
    const auto other = changes_.replaced.find(canonical);
    const Delta* const delta = added == changes_.deltas.end() ? nullptr : &added->second;
    const TensorEntry* const values = other == changes_.replaced.end() ? nullptr : other->second;
    if (delta == nullptr && values == nullptr) {
      copy(base.files()[tensor.file].file(), tensor, out, at);
      return;
    }
    require_changeable(base, tensor, delta, values);
    change(base, tensor, delta, values, out, at);
  }

  std::int64_t merged = 0;
  std::int64_t replaced = 0;

 private:
  static void copy(const File& from, const StoredTensor& tensor, const File& out, std::uint64_t at) {
    std::vector<std::byte> piece(std::min<std::uint64_t>(kSliceBytes, tensor.bytes));
    for (std::uint64_t done = 0; done < tensor.bytes; done += piece.size()) {
      piece.resize(std::min<std::uint64_t>(piece.size(), tensor.bytes - done));
      from.read_at(tensor.offset + done, piece);
      out.write_at(at + done, piece);
    }
  }

  static void require_changeable(const Checkpoint& base,
                                 const StoredTensor& tensor,
                                 const Delta* delta,
                                 const TensorEntry* other) {
    const std::string where = concat(base.file_name(tensor), ", ", tensor.stored_name);
    if (!is_wide_float(tensor.dtype)) {
      throw InputError({.code = Code::kDtypeNotLoadable,
                        .what = "an adapter cannot be merged into a quantised weight",
                        .where = where,
                        .why = concat("expected F32, BF16, F16 or F64, got ", name(tensor.dtype)),
                        .fix = "merge into an unquantised copy of the base"});
    }
    const bool fits = tensor.shape.size() == 2 && delta != nullptr &&
                      static_cast<std::size_t>(tensor.shape[0] * delta->rank) == delta->left.size() &&
                      static_cast<std::size_t>(tensor.shape[1] * delta->rank) == delta->right.size();
    if ((delta != nullptr && !fits) || (other != nullptr && other->shape != tensor.shape)) {
      throw InputError({.code = Code::kShapeMismatch,
                        .what = "a stored weight has another shape than its adapter",
                        .where = where,
                        .why = concat("got ", to_string(tensor.shape)),
                        .fix = "give the base model that the adapter was trained for, its weights stored [out, in]"});
    }
  }

  /// A slice of rows at a time: read, replaced or widened, added to, rounded once, written.
  void change(const Checkpoint& base,
              const StoredTensor& tensor,
              const Delta* delta,
              const TensorEntry* other,
              const File& out,
              std::uint64_t at) {
    const bool flat = tensor.shape.size() != 2;
    const std::int64_t columns = flat ? numel(tensor.shape) : tensor.shape[1];
    const std::int64_t all = flat ? 1 : tensor.shape[0];
    const File& from = other != nullptr ? adapter_.file().file() : base.files()[tensor.file].file();
    const DType dtype = other != nullptr ? other->dtype : tensor.dtype;
    const std::uint64_t begin = other != nullptr ? adapter_.offset_of(*other) : tensor.offset;
    const std::uint64_t item = static_cast<std::uint64_t>(bits(dtype)) / 8;
    const std::uint64_t out_item = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
    const auto row_numel = static_cast<std::uint64_t>(columns);
    const auto at_once = static_cast<std::int64_t>(
        std::max<std::uint64_t>(1, kSliceBytes / (4 * std::max<std::uint64_t>(1, row_numel))));
    for (std::int64_t row = 0; row < all; row += at_once) {
      const std::int64_t rows = std::min(at_once, all - row);
      const std::uint64_t first = static_cast<std::uint64_t>(row) * row_numel;
      const std::size_t count = static_cast<std::size_t>(rows) * row_numel;
      raw_.resize(count * item);
      from.read_at(begin + first * item, raw_);
      values_.resize(count);
      convert(raw_.data(), dtype, reinterpret_cast<std::byte*>(values_.data()), DType::kF32, count);
      if (delta != nullptr) {
        add_rows(*delta, row, rows, columns, values_.data());
      }
      raw_.resize(count * out_item);
      convert(reinterpret_cast<const std::byte*>(values_.data()), DType::kF32, raw_.data(), tensor.dtype, count);
      require_finite(tensor, count);
      out.write_at(at + first * out_item, raw_);
    }
    ++(delta != nullptr ? merged : replaced);
  }

  /// Of what is written, which may have a narrower range.
  void require_finite(const StoredTensor& tensor, std::size_t count) {
    convert(raw_.data(), tensor.dtype, reinterpret_cast<std::byte*>(values_.data()), DType::kF32, count);
    if (!std::ranges::all_of(values_, [](float value) { return std::isfinite(value); })) {
      throw InputError(
          {.code = Code::kNotFinite,
           .what = "a merged weight is NaN or infinite",
           .where = tensor.stored_name,
           .why = concat("stored as ", name(tensor.dtype)),
           .fix = "look for NaN in base and adapter (tieshard load); a base in float16 may be too narrow"});
    }
  }

  const AdapterFile& adapter_;
  const Changes& changes_;
  std::vector<std::byte> raw_;
  std::vector<float> values_;
};

/// What an index tells.
struct WrittenIndex {
  std::map<std::string, std::string> weight_map;
  std::uint64_t total_size = 0;
};

/// Writes what goes to one file of the base's name; nothing where all of it is further copies.
void write_file(const Checkpoint& base,
                std::size_t index,
                const std::vector<MergedTensor>& tensors,
                const fs::path& staging,
                TensorMerger& merger,
                MergeReport& report,
                WrittenIndex& written) {
  const SafetensorsFile& source = base.files()[index];
  std::vector<TensorSpec> specs;
  std::map<std::string, const MergedTensor*> merged;
  for (const MergedTensor& tensor : tensors) {
    if (tensor.file == index) {
      specs.push_back({.name = tensor.name, .dtype = tensor.source->dtype, .shape = tensor.source->shape});
      merged[tensor.name] = &tensor;
    }
  }
  if (specs.empty()) {
    return;
  }
  const std::string file_name = source.file().path().filename().string();
  const SafetensorsLayout layout = layout_safetensors(std::move(specs), source.header().metadata);
  const File out = File::create(staging / file_name, layout.file_bytes);
  out.write_at(0, std::as_bytes(std::span(layout.prefix)));
  for (const TensorEntry& entry : layout.header.tensors) {
    const MergedTensor& tensor = *merged.at(entry.name);
    merger.write(base, *tensor.source, tensor.canonical, out, layout.offset_of(entry.name));
    written.weight_map[entry.name] = file_name;
    written.total_size += entry.end - entry.begin;
  }
  out.sync();
  report.files.push_back(file_name);
  report.bytes += layout.file_bytes;
  report.tensors += static_cast<std::int64_t>(layout.header.tensors.size());
}

/// config.json with the ties that the weights have, the index of several files, and what stands beside them.
void write_companions(const ResolvedModel& model,
                      const MergeReport& report,
                      const WrittenIndex& written,
                      const fs::path& staging) {
  const fs::path& base = model.checkpoint.directory();
  copy_companion_files(base, staging);
  if (const std::optional<bool> flag = changed_tie_flag(model.ties, model.checkpoint)) {
    const std::string text = read_text_file(base / "config.json");
    write_text_file(staging / "config.json", with_tie_flag(text, model.checkpoint.config(), *flag));
  } else {
    copy_durably(base / "config.json", staging / "config.json");
  }
  if (report.files != std::vector<std::string>{kSingleWeights}) {
    write_text_file(staging / kWeightsIndex, safetensors_index_text(written.weight_map, written.total_size));
  }
}

} // namespace

MergeReport merge_adapter(const fs::path& base,
                          const fs::path& adapter_directory,
                          const fs::path& out,
                          const ResolveOptions& options,
                          std::optional<TiedTarget> tied) {
  const auto start = std::chrono::steady_clock::now();
  require_new_name(out);
  const ResolvedModel model = resolve_model(base, options);
  const AdapterFile adapter = AdapterFile::open(adapter_directory);
  LoraConfig config = adapter.config();
  config.tied = tied.value_or(config.tied);
  const LoraPlan plan = plan_lora(config, adaptable_modules(model), model.table, model.ties);
  refuse_parted_ties(plan, adapter_directory);
  const Changes changes = read_changes(adapter, plan);
  require_stored(model, changes);
  require_untied_stored(model);
  const std::vector<MergedTensor> tensors = merged_tensors(model);
  MergeReport report{.directory = out, .findings = model.findings};
  StagedOutput staged(out, bytes_of(tensors));
  TensorMerger merger(adapter, changes);
  WrittenIndex written;
  for (std::size_t index = 0; index < model.checkpoint.files().size(); ++index) {
    write_file(model.checkpoint, index, tensors, staged.path(), merger, report, written);
  }
  write_companions(model, report, written, staged.path());
  report.merged = merger.merged;
  report.replaced = merger.replaced;
  staged.publish();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

} // namespace tieshard
