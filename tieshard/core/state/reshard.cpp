#include "tieshard/core/state/reshard.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

#include <sys/resource.h>

#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/state/block_layout.h"
#include "tieshard/core/state/checkpoint_source.h"
#include "tieshard/core/state/hashed_file.h"
#include "tieshard/core/state/recorded_state.h"
#include "tieshard/core/state/reshard_plan.h"
#include "tieshard/core/state/slab_stream.h"
#include "tieshard/core/state/staged_output.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFiles = 256;       ///< that are written at once
constexpr std::size_t kMostBlocks = 1 << 20;  ///< whose layouts are in memory at once
constexpr std::size_t kSpareDescriptors = 32; ///< for everything that is no shard

/// One rank's new file. Its tensors come in the order of the file.
class TargetFile {
 public:
  TargetFile(const fs::path& directory,
             const std::string& id,
             const std::vector<ReshardedTensor>& tensors,
             std::int64_t rank,
             std::int64_t ranks)
      : rank_(rank), ranks_(ranks) {
    std::vector<TensorBlock> blocks;
    for (const ReshardedTensor& tensor : tensors) {
      if (has(tensor)) {
        blocks.push_back(block(tensor));
      }
    }
    const SafetensorsLayout layout = layout_shard_file(blocks, id);
    file_ = std::make_unique<HashedFile>(directory / shard_file_name(rank, 0, 1), layout.file_bytes);
    file_->append(std::as_bytes(std::span(layout.prefix)));
  }

  /// What of the slab goes here.
  void append(const Slab& slab, const ReshardedTensor& tensor) {
    if (!has(tensor)) {
      return;
    }
    const bool packed = bits(tensor.tensor->dtype) % 8 != 0; // the slab counts bytes, and all of them go here
    if (const auto part = packed ? slab.box : intersection(slab.box, block(tensor).box)) {
      file_->append(slab.gather(*part, scratch_));
    }
  }

  FileRecord finish() {
    FileRecord record = file_->finish();
    file_.reset();
    return record;
  }

 private:
  bool has(const ReshardedTensor& tensor) const {
    return tensor.dim >= 0 || rank_ == 0;
  }
  TensorBlock block(const ReshardedTensor& resharded) const {
    const ShardedTensor& tensor = *resharded.tensor;
    ChunkRange chunk;
    if (resharded.dim >= 0) {
      chunk = chunk_range(tensor.shape[static_cast<std::size_t>(resharded.dim)], ranks_, rank_);
    }
    TensorBlock block = block_of(tensor.name, tensor.dtype, tensor.shape, resharded.dim, chunk);
    block.states_whole = tensor.stated;
    return block;
  }

  std::int64_t rank_;
  std::int64_t ranks_;
  std::unique_ptr<HashedFile> file_;
  std::vector<std::byte> scratch_;
};

/// Files that are written at once: as many as the process may have open, and as memory has room for their layouts.
std::size_t group_size(const ShardedFiles& files, std::size_t ranks) {
  rlimit limit{};
  const std::size_t open = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY
                               ? static_cast<std::size_t>(limit.rlim_cur)
                               : 2 * kMostFiles + files.files().size();
  const std::size_t taken = files.files().size() + kSpareDescriptors;
  const std::size_t free = open > taken ? open - taken : 1;
  const std::size_t by_memory =
      std::max<std::size_t>(1, kMostBlocks / std::max<std::size_t>(1, files.tensors().size()));
  return std::min({ranks, kMostFiles, free, by_memory});
}

/// Progress of several threads as one number.
class ProgressSum {
 public:
  ProgressSum(const ReshardOptions& options, std::uint64_t total) : options_(options), total_(total) {}

  void add(std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    done_ += bytes;
    if (options_.on_progress) {
      options_.on_progress(done_, total_);
    }
  }

 private:
  const ReshardOptions& options_;
  std::uint64_t total_;
  std::mutex mutex_;
  std::uint64_t done_ = 0;
};

class Resharder {
 public:
  Resharder(const ShardedFiles& files, std::vector<ReshardedTensor> tensors, const ReshardOptions& options)
      : files_(files), tensors_(std::move(tensors)), options_(options) {
    // The order that a layout has: whatever rank's file, its tensors come one after another.
    std::ranges::stable_sort(tensors_, std::ranges::greater(), [](const auto& t) { return t.tensor->dtype; });
    for (const ReshardedTensor& tensor : tensors_) {
      const ShardedTensor* source = tensor.tensor;
      if (bits(source->dtype) % 8 != 0) {
        source = &packed_.emplace_back(as_bytes(*source));
      }
      jobs_.push_back({.tensor = source, .part = {.offsets = Shape(source->shape.size(), 0), .shape = source->shape}});
    }
  }

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const ReshardedTensor& tensor : tensors_) {
      sum += *checked_bytes(tensor.tensor->shape, tensor.tensor->dtype);
    }
    return sum;
  }

  std::vector<FileRecord> write(const fs::path& directory) const {
    const auto ranks = static_cast<std::size_t>(options_.ranks);
    const std::size_t at_once = group_size(files_, ranks);
    ProgressSum progress(options_, bytes());
    std::vector<FileRecord> records(ranks);
    for (std::size_t first = 0; first < ranks; first += at_once) {
      write_group(directory, first, std::min(at_once, ranks - first), progress, records);
    }
    return records;
  }

 private:
  /// The files of ranks [first, first + count), each by one worker, in one pass over the sources.
  void write_group(const fs::path& directory,
                   std::size_t first,
                   std::size_t count,
                   ProgressSum& progress,
                   std::vector<FileRecord>& records) const {
    std::vector<TargetFile> targets;
    targets.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      targets.emplace_back(directory, files_.id(), tensors_, static_cast<std::int64_t>(first + i), options_.ranks);
    }
    const bool overlap = options_.threads > 1;
    const std::size_t workers =
        std::min<std::size_t>(count, overlap ? static_cast<std::size_t>(options_.threads) - 1 : 1);
    std::vector<std::function<void(const Slab&)>> takes;
    for (std::size_t worker = 0; worker < workers; ++worker) {
      takes.emplace_back([&, worker](const Slab& slab) {
        for (std::size_t i = worker; i < count; i += workers) {
          targets[i].append(slab, tensors_[slab.job]);
        }
        if (worker == 0 && first == 0) {
          progress.add(slab.data.size());
        }
      });
    }
    stream_slabs(files_, jobs_, slab_limits(options_.memory, workers, count), takes, overlap);
    for (std::size_t i = 0; i < count; ++i) {
      records[first + i] = targets[i].finish();
    }
  }

  const ShardedFiles& files_;
  std::vector<ReshardedTensor> tensors_;
  const ReshardOptions& options_;
  std::deque<ShardedTensor> packed_;
  std::vector<SlabJob> jobs_;
};

/// Everything that is no tensor: what lies in the directory, and what the manifest names below it.
std::vector<FileRecord> copy_others(const fs::path& from, const fs::path& to, const Manifest* manifest) {
  std::vector<std::string> names;
  for (const std::string& name : list_directory(from)) {
    if (fs::is_regular_file(from / name) && !name.starts_with(".")) {
      names.push_back(name);
    }
  }
  if (manifest != nullptr) {
    for (const FileRecord& file : manifest->files) {
      if (file.name.find('/') != std::string::npos) {
        names.push_back(file.name);
      }
    }
  }
  std::vector<FileRecord> records;
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || name == Manifest::kFileName) {
      continue;
    }
    std::error_code error; // copying says it
    fs::create_directories((to / name).parent_path(), error);
    copy_durably(from / name, to / name);
    records.push_back(record_of(to, name));
  }
  return records;
}

ReshardReport reshard(const CheckpointSource& source, const fs::path& out, const ReshardOptions& options) {
  require_outside(source, out);
  std::optional<Manifest> recorded = source.manifest;
  Manifest* const manifest = recorded ? &*recorded : nullptr;
  const ShardedFiles files = ShardedFiles::open(source.directory);
  if (manifest != nullptr) {
    require_as_recorded(files, *manifest);
  }
  const ParameterNames names(files, manifest);
  const Resharder resharder(files, plan_reshard(files, names, manifest, options), options);
  StagedOutput staged(out, resharder.bytes());
  const std::vector<FileRecord> others = copy_others(source.directory, staged.path(), manifest); // while it is there
  std::vector<FileRecord> records = resharder.write(staged.path());

  ReshardReport report{.directory = out, .ranks = options.ranks, .findings = source.findings};
  report.findings.insert(report.findings.end(), files.findings().begin(), files.findings().end());
  if (const auto unstated = unstated_shapes(files); unstated && manifest == nullptr) {
    report.findings.push_back(*unstated);
  }
  report.tensors = static_cast<std::int64_t>(files.tensors().size());
  for (const FileRecord& record : records) {
    report.bytes += record.bytes;
  }
  if (manifest != nullptr) {
    records.insert(records.end(), others.begin(), others.end());
    std::ranges::sort(records, {}, &FileRecord::name);
    manifest->files = std::move(records);
    manifest->mesh = {{.name = "dp_shard", .size = options.ranks}};
    write_text_file(staged.path() / Manifest::kFileName, to_json(*manifest));
  }
  staged.publish();
  return report;
}

} // namespace

ReshardReport reshard_checkpoint(const fs::path& in, const fs::path& out, const ReshardOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  require_new_name(out);
  ReshardReport report =
      use_source(in, options.verify, [&](const CheckpointSource& source) { return reshard(source, out, options); });
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

} // namespace tieshard
