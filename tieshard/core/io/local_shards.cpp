#include "tieshard/core/io/local_shards.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/io/init_slice.h"
#include "tieshard/core/io/mapped_range.h"
#include "tieshard/core/io/reader.h"
#include "tieshard/core/io/shard_memory.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kFixedBytes = 8 << 20;   ///< threads and tables
constexpr std::uint64_t kLeastBuffer = 1 << 20;  ///< counted of --read-buffer: each thread holds a few pages at least
constexpr std::uint64_t kAccountBytes = 1 << 10; ///< of one parameter: entries, names, chunks

std::uint64_t bytes_of(const ShardPlan& plan, const ShardedParameter& parameter, std::int64_t rank) {
  const auto elements = static_cast<std::uint64_t>(numel(plan.local_shape(parameter, rank)));
  return elements * static_cast<std::uint64_t>(bits(parameter.dtype)) / 8;
}

bool skipped(const LocalShardOptions& options, const std::string& fqn) {
  return options.skip != nullptr && options.skip->contains(fqn);
}

/// Before anything is read from them, and after.
void require_unchanged(const Checkpoint& checkpoint, const std::vector<SliceRead>& reads) {
  std::set<std::size_t> files;
  for (const SliceRead& read : reads) {
    files.insert(read.file);
    if (read.scale) {
      files.insert(read.scale->file);
    }
  }
  for (const std::size_t file : files) {
    checkpoint.files()[file].file().require_unchanged();
  }
}

bool can_be_mapped(const SliceRead& read, const LocalShard& shard, const LocalShardOptions& options) {
  return options.map && read.encoding == Encoding::kPlain && read.range.contiguous() &&
         read.stored_dtype == shard.dtype && shard.bytes >= options.smallest_mapped &&
         (read.offset + read.range.first) %
                 std::max<std::uint64_t>(1, static_cast<std::uint64_t>(bits(shard.dtype)) / 8) ==
             0;
}

LedgerEntry make_entry(const ShardedParameter& parameter,
                       const Checkpoint& checkpoint,
                       const ShardPlan& plan,
                       std::int64_t rank) {
  LedgerEntry entry;
  entry.fqn = parameter.fqn;
  entry.aliases = plan.ties().aliases(parameter.fqn);
  if (const StoredTensor* const stored = plan.ties().source(checkpoint, parameter.fqn)) {
    entry.stored_name = stored->stored_name;
    entry.file = checkpoint.file_name(*stored);
    entry.offset = stored->offset;
    entry.stored_dtype = stored->dtype;
  }
  entry.elements = numel(plan.local_shape(parameter, rank));
  entry.whole_elements = numel(parameter.shape);
  entry.padding = numel(plan.local_shape(parameter, 0)) - entry.elements;
  return entry;
}

/// The load of one rank while it goes on.
class Load {
 public:
  Load(const Checkpoint& checkpoint, const ShardPlan& plan, std::int64_t rank, const LocalShardOptions& options)
      : checkpoint_(checkpoint), plan_(plan), rank_(rank), options_(options) {}

  LocalShards run(const ReadPlan& reads) {
    const auto start = std::chrono::steady_clock::now();
    result_.ledger.predicted_bytes = predicted_load_bytes(plan_, rank_, options_);
    require_room(plan_, rank_, options_);
    require_unchanged(checkpoint_, reads.reads);
    result_.ledger.unused = reads.unused;
    result_.ledger.findings = reads.findings;
    open_account();
    for (const SliceRead& read : reads.reads) {
      if (const auto found = by_name_.find(read.fqn); found != by_name_.end()) {
        give_memory(read, result_.shards[found->second]);
        note_source(read, entry_of(read.fqn));
      }
    }
    for (const InitSlice& init : reads.inits) {
      if (const auto found = by_name_.find(init.fqn); found != by_name_.end()) {
        take_memory(result_.shards[found->second]);
        entry_of(init.fqn).initialised = init.rule.to_string();
        fill_slice(init, result_.shards[found->second].data, result_.shards[found->second].dtype);
      }
    }
    read_all(reads.reads);
    require_unchanged(checkpoint_, reads.reads);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    result_.ledger.seconds = spent.count();
    return std::move(result_);
  }

 private:
  void open_account() {
    for (const ShardedParameter& parameter : plan_.parameters()) {
      entries_[parameter.fqn] = result_.ledger.entries.size();
      result_.ledger.entries.push_back(make_entry(parameter, checkpoint_, plan_, rank_));
      if (skipped(options_, parameter.fqn)) {
        continue;
      }
      result_.ledger.entries.back().materialized = 1;
      by_name_[parameter.fqn] = result_.shards.size();
      result_.shards.push_back({.fqn = parameter.fqn,
                                .shape = plan_.local_shape(parameter, rank_),
                                .dtype = parameter.dtype,
                                .bytes = bytes_of(plan_, parameter, rank_)});
      result_.ledger.shard_bytes += result_.shards.back().bytes;
    }
  }

  LedgerEntry& entry_of(const std::string& fqn) {
    return result_.ledger.entries[entries_.at(fqn)];
  }

  void give_memory(const SliceRead& read, LocalShard& shard) {
    ReadTarget target{.dtype = shard.dtype};
    if (can_be_mapped(read, shard, options_)) {
      const File& file = checkpoint_.files()[read.file].file();
      std::shared_ptr<MappedRange> mapping = MappedRange::map(file, read.offset + read.range.first, read.range.bytes());
      if (mapping != nullptr) {
        target.mapping = mapping.get();
        shard.data = mapping->data();
        shard.memory = std::move(mapping);
        shard.mapped = true;
        result_.ledger.bytes_mapped += shard.bytes;
      }
    }
    if (shard.memory == nullptr) {
      take_memory(shard);
    }
    target.data = shard.data;
    wanted_.push_back(read);
    targets_.push_back(target);
  }

  void take_memory(LocalShard& shard) {
    shard.memory = memory_.take(shard.bytes);
    shard.data = static_cast<std::byte*>(shard.memory.get());
  }

  void note_source(const SliceRead& read, LedgerEntry& entry) {
    entry.stored_name = read.stored_name;
    entry.file = checkpoint_.files()[read.file].file().path().filename().string();
    entry.offset = read.offset;
    entry.stored_dtype = read.stored_dtype;
    entry.encoding = read.encoding;
    entry.scales = read.scale ? read.scale->stored_name : "";
    entry.mapped = result_.shards[by_name_.at(read.fqn)].mapped;
  }

  void read_all(const std::vector<SliceRead>& all) {
    std::uint64_t total = 0;
    for (const SliceRead& read : wanted_) {
      total += read.stored_bytes();
    }
    ReaderOptions reader{
        .threads = options_.threads, .buffer_bytes = options_.read_buffer, .check_values = options_.check_values};
    if (options_.on_progress) {
      reader.on_progress = [this, total](std::uint64_t done) { options_.on_progress(done, total); };
    }
    try {
      ReadReport report = read_slices(checkpoint_, wanted_, targets_, reader);
      result_.ledger.bytes_read = report.bytes_asked;
      if (!report.not_finite.empty()) {
        result_.ledger.findings.push_back(not_finite_finding(report.not_finite));
        result_.ledger.not_finite = std::move(report.not_finite);
      }
    } catch (const PeerError&) {
      require_unchanged(checkpoint_, all); // a file that was cut says more than the read that failed on it
      throw;
    }
  }

  const Checkpoint& checkpoint_;
  const ShardPlan& plan_;
  std::int64_t rank_;
  const LocalShardOptions& options_;
  ShardMemory memory_;
  LocalShards result_;
  std::map<std::string, std::size_t, std::less<>> by_name_; ///< into result_.shards
  std::map<std::string, std::size_t, std::less<>> entries_; ///< into result_.ledger.entries
  std::vector<SliceRead> wanted_;
  std::vector<ReadTarget> targets_;
};

} // namespace

std::uint64_t predicted_load_bytes(const ShardPlan& plan, std::int64_t rank, const LocalShardOptions& options) {
  std::uint64_t total = std::max(options.read_buffer, kLeastBuffer) + kFixedBytes;
  std::vector<std::uint64_t> pieces; // as if all were copied: which can be mapped is not asked here
  for (const ShardedParameter& parameter : plan.parameters()) {
    const std::uint64_t bytes = skipped(options, parameter.fqn) ? 0 : bytes_of(plan, parameter, rank);
    const bool whole_pages = options.map && bytes >= options.smallest_mapped;
    pieces.push_back(bytes);
    total += (whole_pages ? 2 * kPageBytes : 0) + kAccountBytes;
  }
  return total + ShardMemory::of_pieces(pieces);
}

void require_room(const ShardPlan& plan, std::int64_t rank, const LocalShardOptions& options) {
  const std::uint64_t predicted = predicted_load_bytes(plan, rank, options);
  if (!options.host_ram || predicted <= *options.host_ram) {
    return;
  }
  throw InputError({.code = Code::kHostMemory,
                    .what = "a load needs more memory than it may take",
                    .where = concat("rank ", rank, " of ", plan.ranks()),
                    .why = concat("expected at most ",
                                  *options.host_ram,
                                  " bytes (",
                                  format_bytes(*options.host_ram),
                                  "), got ",
                                  predicted,
                                  " bytes (",
                                  format_bytes(predicted),
                                  "), of which ",
                                  format_bytes(options.read_buffer),
                                  " are read buffers"),
                    .fix = "use more ranks, a smaller --param-dtype or a smaller --read-buffer, or raise "
                           "--host-ram-per-rank"});
}

LocalShards load_local_shards(const Checkpoint& checkpoint,
                              const ShardPlan& plan,
                              const ReadPlan& reads,
                              std::int64_t rank,
                              const LocalShardOptions& options) {
  return Load(checkpoint, plan, rank, options).run(reads);
}

} // namespace tieshard
