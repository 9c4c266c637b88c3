#include "tieshard/core/io/local_shards.h"

#include <chrono>
#include <map>
#include <string_view>

#include "tieshard/core/io/reader.h"

namespace tieshard {
namespace {

LedgerEntry make_entry(const ShardedParameter& parameter, const ShardPlan& plan, std::int64_t rank) {
  LedgerEntry entry;
  entry.fqn = parameter.fqn;
  entry.aliases = plan.ties().aliases(parameter.fqn);
  entry.elements = numel(plan.local_shape(parameter, rank));
  entry.whole_elements = numel(parameter.shape);
  entry.padding = numel(plan.local_shape(parameter, 0)) - entry.elements;
  entry.materialized = 1;
  return entry;
}

std::uint64_t bytes_of(const ShardPlan& plan, const ShardedParameter& parameter, std::int64_t rank) {
  const auto elements = static_cast<std::uint64_t>(numel(plan.local_shape(parameter, rank)));
  return elements * static_cast<std::uint64_t>(bits(parameter.dtype)) / 8;
}

LocalShard make_shard(const ShardedParameter& parameter, const ShardPlan& plan, std::int64_t rank) {
  LocalShard shard{.fqn = parameter.fqn,
                   .shape = plan.local_shape(parameter, rank),
                   .dtype = parameter.dtype,
                   .bytes = bytes_of(plan, parameter, rank)};
  if (shard.bytes > 0) {
    shard.memory = std::shared_ptr<std::byte[]>(new std::byte[shard.bytes]);
    shard.data = static_cast<std::byte*>(shard.memory.get());
  }
  return shard;
}

} // namespace

std::uint64_t predicted_load_bytes(const ShardPlan& plan, std::int64_t rank, const LocalShardOptions& options) {
  std::uint64_t total = options.read_buffer;
  for (const ShardedParameter& parameter : plan.parameters()) {
    total += bytes_of(plan, parameter, rank);
  }
  return total;
}

LocalShards load_local_shards(const Checkpoint& checkpoint,
                              const ShardPlan& plan,
                              const ReadPlan& reads,
                              std::int64_t rank,
                              const LocalShardOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LocalShards result;
  std::map<std::string_view, ReadTarget> targets_by_name;
  for (const ShardedParameter& parameter : plan.parameters()) {
    if (options.skip == nullptr || !options.skip->contains(parameter.fqn)) {
      result.shards.push_back(make_shard(parameter, plan, rank));
      result.ledger.entries.push_back(make_entry(parameter, plan, rank));
      result.ledger.shard_bytes += result.shards.back().bytes;
      targets_by_name[parameter.fqn] = {.data = result.shards.back().data, .dtype = parameter.dtype};
    }
  }
  std::vector<SliceRead> wanted;
  std::vector<ReadTarget> targets;
  std::uint64_t total = 0;
  for (const SliceRead& read : reads.reads) {
    if (const auto target = targets_by_name.find(read.fqn); target != targets_by_name.end()) {
      wanted.push_back(read);
      targets.push_back(target->second);
      total += read.stored_bytes();
    }
  }
  ReaderOptions reader{.threads = options.threads, .buffer_bytes = options.read_buffer};
  if (options.on_progress) {
    reader.on_progress = [&options, total](std::uint64_t done) { options.on_progress(done, total); };
  }
  result.ledger.bytes_read = read_slices(checkpoint, wanted, targets, reader);
  result.ledger.unused = reads.unused;
  result.ledger.findings = reads.findings;
  result.ledger.predicted_bytes = predicted_load_bytes(plan, rank, options);
  result.ledger.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

} // namespace tieshard
