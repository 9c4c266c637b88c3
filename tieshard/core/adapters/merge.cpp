#include "tieshard/core/adapters/merge.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "tieshard/core/adapters/adapter_file.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/checkpoint/companion_files.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/io/convert.h"

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

std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  std::vector<float> turned(values.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      turned[static_cast<std::size_t>(column * rows + row)] = values[static_cast<std::size_t>(row * columns + column)];
    }
  }
  return turned;
}

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
           .fix = "use the base and the adapter side by side; or untie the base first, with a copy of the "
                  "weight under each name and tie_word_embeddings false"});
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

void write_file(
    const ResolvedModel& model, std::size_t index, const fs::path& staging, TensorMerger& merger, MergeReport& report) {
  const Checkpoint& base = model.checkpoint;
  const SafetensorsFile& source = base.files()[index];
  std::vector<TensorSpec> specs;
  std::map<std::string, const StoredTensor*> stored;
  for (const StoredTensor& tensor : base.tensors()) {
    if (tensor.file == index) {
      specs.push_back({.name = tensor.stored_name, .dtype = tensor.dtype, .shape = tensor.shape});
      stored[tensor.stored_name] = &tensor;
    }
  }
  const std::string file_name = source.file().path().filename().string();
  const SafetensorsLayout layout = layout_safetensors(std::move(specs), source.header().metadata);
  const File out = File::create(staging / file_name, layout.file_bytes);
  out.write_at(0, std::as_bytes(std::span(layout.prefix)));
  for (const TensorEntry& entry : layout.header.tensors) {
    const StoredTensor& tensor = *stored.at(entry.name);
    merger.write(base, tensor, model.ties.canonical(tensor.name), out, layout.offset_of(entry.name));
  }
  out.sync();
  report.files.push_back(file_name);
  report.bytes += layout.file_bytes;
  report.tensors += static_cast<std::int64_t>(layout.header.tensors.size());
}

} // namespace

MergeReport merge_adapter(const fs::path& base,
                          const fs::path& adapter_directory,
                          const fs::path& out,
                          const ResolveOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const ResolvedModel model = resolve_model(base, options);
  const AdapterFile adapter = AdapterFile::open(adapter_directory);
  LoraConfig config = adapter.config();
  config.tied = config.tied == TiedTarget::kRefuse ? TiedTarget::kNamed : config.tied; // refused here, in merge's words
  const LoraPlan plan = plan_lora(config, adaptable_modules(model), model.table, model.ties);
  refuse_parted_ties(plan, adapter_directory);
  const Changes changes = read_changes(adapter, plan);
  require_stored(model, changes);
  MergeReport report{.directory = out, .findings = model.findings};
  const fs::path staging = stage_directory(out);
  try {
    TensorMerger merger(adapter, changes);
    for (std::size_t index = 0; index < model.checkpoint.files().size(); ++index) {
      write_file(model, index, staging, merger, report);
    }
    copy_companion_files(base, staging);
    for (const std::string& name : list_directory(base)) {
      if (name == "config.json" || name.ends_with(".index.json")) {
        copy_durably(base / name, staging / name);
      }
    }
    report.merged = merger.merged;
    report.replaced = merger.replaced;
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(staging, ignored);
    throw;
  }
  publish_directory(out);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

} // namespace tieshard
