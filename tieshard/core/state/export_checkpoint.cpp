#include "tieshard/core/state/export_checkpoint.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/checkpoint/companion_files.h"
#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/overflow.h"
#include "tieshard/core/state/checkpoint_source.h"
#include "tieshard/core/state/export_plan.h"
#include "tieshard/core/state/hashed_file.h"
#include "tieshard/core/state/recorded_state.h"
#include "tieshard/core/state/slab_stream.h"
#include "tieshard/core/state/staged_output.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";

/// Where config.json is; nothing where a merge finds none.
std::optional<fs::path> config_directory(const fs::path& source, const ExportCheckpointOptions& options) {
  const fs::path directory = options.config_from.empty() ? source : options.config_from;
  if (is_there(directory / kConfig)) {
    return directory;
  }
  if (options.plain && options.config_from.empty()) {
    return std::nullopt;
  }
  throw InputError({.code = Code::kConfigMissing,
                    .what = "there is no config.json",
                    .where = directory.string(),
                    .why = "expected the model's config.json beside its weights, got no such file",
                    .fix = "name the directory of the model that was trained with --config-from"});
}

Diagnostic without_config(const fs::path& out) {
  return {
      .level = Level::kWarning,
      .code = Code::kConfigMissing,
      .what = "there is no config.json",
      .where = out.string(),
      .why = "expected one in the source, got none: tensors alone are written, their shapes not compared with a model",
      .fix = "copy the model's config.json beside them, or name its directory with --config-from"};
}

/// config.json as it is, but for what the export changes: the dtype that is asked for; the encoding of values that
/// training has decoded.
std::string exported_config(const fs::path& directory,
                            const HfConfig& config,
                            bool trained,
                            std::optional<DType> dtype) {
  std::string text = read_text_file(directory / kConfig);
  const bool quantised = trained && config.has("quantization_config");
  const bool other_dtype = dtype && config.dtype() != dtype;
  if (!quantised && !other_dtype) {
    return text;
  }
  nlohmann::ordered_json changed = nlohmann::ordered_json::parse(text);
  if (quantised) {
    changed.erase("quantization_config");
  }
  if (other_dtype) {
    changed.erase("torch_dtype");
    changed["dtype"] = std::string(torch_name(*dtype));
  }
  return changed.dump(2) + "\n";
}

/// The files of a plan, one after another, from the slabs of their tensors.
class ExportWriter {
 public:
  ExportWriter(const ExportPlan& plan, const fs::path& directory, const ExportCheckpointOptions& options)
      : plan_(plan), directory_(directory), options_(options) {
    for (std::size_t file = 0; file < plan.files.size(); ++file) {
      for (const ExportedTensor& tensor : plan.files[file].tensors) {
        const ShardedTensor* source = tensor.tensor;
        Shape shape = tensor.shape;
        if (bits(source->dtype) % 8 != 0) {
          source = &packed_.emplace_back(as_bytes(*source));
          shape = source->shape;
        }
        jobs_.push_back({.tensor = source, .part = {.offsets = Shape(shape.size(), 0), .shape = shape}});
        tensors_.push_back(&tensor);
        files_.push_back(file);
      }
      total_ += plan.files[file].layout.file_bytes;
    }
  }

  /// @throws InputError not-finite when values are too large for the dtype that they are converted to
  std::vector<FileRecord> write(const ShardedFiles& sources) {
    begin();
    const bool overlap = options_.threads > 1;
    stream_slabs(sources,
                 jobs_,
                 slab_limits(options_.memory, 2, 1), // one scratch to gather, one to convert
                 {[this](const Slab& slab) { take(slab); }},
                 overlap);
    while (records_.size() < plan_.files.size()) {
      next();
    }
    if (!overflowed_.empty()) {
      throw InputError(overflow_finding(Level::kError, overflowed_, sources.directory().string()));
    }
    return std::move(records_);
  }

 private:
  void begin() {
    const ExportedFile& file = plan_.files[records_.size()];
    file_ = std::make_unique<HashedFile>(directory_ / file.name, file.layout.file_bytes);
    file_->append(std::as_bytes(std::span(file.layout.prefix)));
    done_ += file.layout.prefix.size();
  }

  void next() {
    records_.push_back(file_->finish());
    if (records_.size() < plan_.files.size()) {
      begin();
    }
  }

  void take(const Slab& slab) {
    while (records_.size() < files_[slab.job]) {
      next();
    }
    const ExportedTensor& tensor = *tensors_[slab.job];
    std::span<const std::byte> bytes = slab.gather(slab.box, scratch_);
    if (tensor.dtype != tensor.tensor->dtype) {
      const auto count = static_cast<std::size_t>(numel(slab.box.shape));
      converted_.resize(count * static_cast<std::size_t>(bits(tensor.dtype)) / 8);
      convert(bytes.data(), tensor.tensor->dtype, converted_.data(), tensor.dtype, count);
      if (const std::int64_t infinite =
              count_overflowed(bytes.data(), tensor.tensor->dtype, converted_.data(), tensor.dtype, count);
          infinite > 0) {
        overflowed_[tensor.tensor->name] += infinite;
      }
      bytes = converted_;
    }
    file_->append(bytes);
    done_ += bytes.size();
    if (options_.on_progress) {
      options_.on_progress(done_, total_);
    }
  }

  const ExportPlan& plan_;
  const fs::path& directory_;
  const ExportCheckpointOptions& options_;
  std::deque<ShardedTensor> packed_;
  std::vector<SlabJob> jobs_;
  std::vector<const ExportedTensor*> tensors_; ///< of each job
  std::vector<std::size_t> files_;             ///< of each job
  std::vector<FileRecord> records_;            ///< of the files that are finished
  std::unique_ptr<HashedFile> file_;
  std::vector<std::byte> scratch_;
  std::vector<std::byte> converted_;
  std::map<std::string, std::int64_t> overflowed_; ///< values, by tensor
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

/// Opens the staged directory as a loader does, and compares it with the plan and the bytes that were written.
void require_readable(const fs::path& staging, const ExportPlan& plan, const std::vector<FileRecord>& records) {
  const auto fail = [&](const std::string& file, std::string why) {
    throw PeerError({.code = Code::kExportMismatch,
                     .what = "an export does not read back as written",
                     .where = (staging / file).string(),
                     .why = std::move(why),
                     .fix = "check the disk; nothing was published"});
  };
  const StoredWeights stored = open_stored_weights(staging, {});
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    const ExportedFile& file = plan.files[i];
    tensors += file.tensors.size();
    if (const FileRecord read = record_of(staging, file.name); read != records[i]) {
      fail(file.name, concat("expected the hash ", records[i].xxh128, ", got ", read.xxh128));
    }
  }
  if (stored.tensors.size() != tensors) {
    fail("", concat("expected ", tensors, " tensors, got ", stored.tensors.size()));
  }
}

ExportCheckpointReport export_source(const CheckpointSource& source,
                                     const fs::path& out,
                                     const ExportCheckpointOptions& options) {
  require_outside(source, out);
  const Manifest* const manifest = source.manifest ? &*source.manifest : nullptr;
  const ShardedFiles files = ShardedFiles::open(source.directory);
  if (manifest != nullptr) {
    require_as_recorded(files, *manifest);
  }
  const std::optional<fs::path> config_from = config_directory(source.directory, options);
  std::optional<HfConfig> config;
  if (config_from) {
    config = HfConfig::parse(read_text_file(*config_from / kConfig), kConfig);
  }
  ExportPlan plan = plan_export(files, manifest, config ? &*config : nullptr, options);

  ExportCheckpointReport report{.directory = out, .left_out = std::move(plan.left_out), .findings = source.findings};
  report.findings.insert(report.findings.end(), files.findings().begin(), files.findings().end());
  report.findings.insert(report.findings.end(), plan.findings.begin(), plan.findings.end());
  for (const ExportedFile& file : plan.files) {
    report.files.push_back(file.name);
    report.tensors += static_cast<std::int64_t>(file.tensors.size());
    report.bytes += file.layout.file_bytes;
  }
  StagedOutput staged(out, report.bytes);
  if (config) { // first, while the source is there
    write_text_file(staged.path() / kConfig,
                    exported_config(*config_from,
                                    *config,
                                    manifest != nullptr,
                                    options.dtype || options.plain ? options.dtype : exported_dtype(*config)));
    copy_companion_files(*config_from, staged.path());
  } else {
    report.findings.push_back(without_config(out));
    if (const auto unstated = unstated_shapes(files)) {
      report.findings.push_back(*unstated);
    }
  }
  const std::vector<FileRecord> records = ExportWriter(plan, staged.path(), options).write(files);
  if (plan.files.size() > 1) {
    write_text_file(staged.path() / kWeightsIndex, index_of(plan.files));
  }
  require_readable(staged.path(), plan, records);
  staged.publish();
  return report;
}

} // namespace

ExportCheckpointReport export_checkpoint(const fs::path& in,
                                         const fs::path& out,
                                         const ExportCheckpointOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  require_new_name(out);
  ExportCheckpointReport report = use_source(
      in, options.verify, [&](const CheckpointSource& source) { return export_source(source, out, options); });
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

} // namespace tieshard
