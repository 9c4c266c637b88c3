// tieshard/core/io/local_shards.h
//
// Executes a ReadPlan into memory that is made here: each parameter's part once, mapped or copied, with its account.
//
// Flow: plan/read_plan.h -> [this] -> runtime/load (tensors around the memory), cli/load

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tieshard/core/io/load_ledger.h"
#include "tieshard/core/plan/read_plan.h"

namespace tieshard {

/// One parameter's part on this rank. Empty parts have no memory.
struct LocalShard {
  std::string fqn;
  Shape shape;
  DType dtype = DType::kF32;
  std::byte* data = nullptr; ///< row-major, aligned to the dtype; writable
  std::uint64_t bytes = 0;
  std::shared_ptr<void> memory{}; ///< keeps `data` valid
  bool mapped = false;            ///< private pages of the file: the first write to a page copies it
};

struct LocalShardOptions {
  int threads = 1;
  std::uint64_t read_buffer = 16 << 20;      ///< bytes that all threads together hold beyond the shards
  bool map = true;                           ///< false (`--no-mmap`): all is copied
  std::uint64_t smallest_mapped = 256 << 10; ///< smaller slices are copied: a mapping's partial pages would not pay
  bool check_values = true;                  ///< look for NaN and infinity, warning not-finite
  std::optional<std::uint64_t> host_ram{};   ///< bytes that the load may add to this process; refused before it reads
  const std::set<std::string>* skip{};       ///< parameters that are left out (they have their bytes); may be null
  /// Called with the bytes finished so far and their total, from any reader thread, one call at a time.
  std::function<void(std::uint64_t, std::uint64_t)> on_progress{};
};

struct LocalShards {
  std::vector<LocalShard> shards; ///< one a canonical parameter, in registration order, those of `skip` left out
  LoadLedger ledger;
};

/// What load_local_shards would add to the process at its peak, in bytes: shards as they will lie in memory, buffers,
/// the account (of --read-buffer 1 MiB at least, since each thread holds a few pages whatever it is). Not less than
/// what it really takes, and more by a few MiB at most for a model of usual shape.
std::uint64_t predicted_load_bytes(const ShardPlan& plan, std::int64_t rank, const LocalShardOptions& options);

/// @throws InputError host-memory when that is more than options.host_ram allows
void require_room(const ShardPlan& plan, std::int64_t rank, const LocalShardOptions& options);

/// Loads `rank`'s part of every parameter, in the plan's dtypes. Reads each byte once, in file order.
///
/// A slice that is plain, contiguous, aligned and of the plan's dtype is mapped privately; all else is copied, and
/// converted, decoded or transposed on the way. size, mtime and inode of every file are compared before and after.
/// @throws InputError host-memory; PeerError io-failed, file-changed; UsageError not-convertible
LocalShards load_local_shards(const Checkpoint& checkpoint,
                              const ShardPlan& plan,
                              const ReadPlan& reads,
                              std::int64_t rank,
                              const LocalShardOptions& options = {});

} // namespace tieshard
