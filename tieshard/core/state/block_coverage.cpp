#include "tieshard/core/state/block_coverage.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {
namespace {

using Blocks = std::vector<const StoredBlock*>;

/// The dimension along which most blocks begin somewhere else, so that few neighbours have to be compared.
std::size_t busiest_dim(const ShardedTensor& tensor) {
  std::size_t busiest = 0;
  std::size_t most = 0;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    std::set<std::int64_t> offsets;
    for (const StoredBlock& block : tensor.blocks) {
      offsets.insert(block.box.offsets[d]);
    }
    if (offsets.size() > most) {
      most = offsets.size();
      busiest = d;
    }
  }
  return busiest;
}

std::optional<std::pair<const StoredBlock*, const StoredBlock*>> find_overlap(const ShardedTensor& tensor) {
  if (tensor.blocks.size() < 2) {
    return std::nullopt;
  }
  if (tensor.shape.empty()) {
    return std::pair(&tensor.blocks[0], &tensor.blocks[1]);
  }
  const std::size_t d = busiest_dim(tensor);
  Blocks sorted;
  for (const StoredBlock& block : tensor.blocks) {
    sorted.push_back(&block);
  }
  std::ranges::stable_sort(sorted, {}, [d](const StoredBlock* block) { return block->box.offsets[d]; });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t end = sorted[i]->box.offsets[d] + sorted[i]->box.shape[d];
    for (std::size_t j = i + 1; j < sorted.size() && sorted[j]->box.offsets[d] < end; ++j) {
      if (intersection(sorted[i]->box, sorted[j]->box)) {
        return std::pair(sorted[i], sorted[j]);
      }
    }
  }
  return std::nullopt;
}

/// Completes `index`, of which the first d numbers are given, to the first element that none of `blocks` holds; these
/// are the blocks that hold those numbers. A first missing element is at 0 or where a block ends, in each dimension.
bool find_missing(const Shape& shape, const Blocks& blocks, std::size_t d, Shape& index) {
  if (d == shape.size()) {
    return blocks.empty();
  }
  std::set<std::int64_t> candidates{0};
  for (const StoredBlock* block : blocks) {
    candidates.insert(block->box.offsets[d] + block->box.shape[d]);
  }
  candidates.erase(shape[d]);
  for (const std::int64_t at : candidates) {
    Blocks holding;
    std::ranges::copy_if(blocks, std::back_inserter(holding), [d, at](const StoredBlock* block) {
      return block->box.offsets[d] <= at && at < block->box.offsets[d] + block->box.shape[d];
    });
    index[d] = at;
    if (find_missing(shape, holding, d + 1, index)) {
      return true;
    }
  }
  return false;
}

[[noreturn]] void throw_missing(const ShardedTensor& tensor,
                                const std::string& where,
                                std::uint64_t held,
                                const std::function<std::string(std::size_t)>& file_name) {
  Blocks blocks;
  std::set<std::string> files;
  for (const StoredBlock& block : tensor.blocks) {
    blocks.push_back(&block);
    files.insert(file_name(block.file));
  }
  Shape first(tensor.shape.size(), 0);
  find_missing(tensor.shape, blocks, 0, first);
  throw InputError({.code = Code::kBlockMissing,
                    .what = "sharded files do not hold all of a tensor",
                    .where = concat(where, ", ", format_name(tensor.name)),
                    .why = concat("expected all ",
                                  numel(tensor.shape),
                                  " elements of ",
                                  to_string(tensor.shape),
                                  ", got ",
                                  held,
                                  " in ",
                                  files.empty() ? "no file" : format_names({files.begin(), files.end()}),
                                  "; the first one missing is ",
                                  to_string(first)),
                    .fix = "copy the shard that is missing into the directory, or use another checkpoint"});
}

} // namespace

void require_covered(const ShardedTensor& tensor,
                     const std::string& where,
                     const std::function<std::string(std::size_t)>& file_name) {
  if (const auto overlap = find_overlap(tensor)) {
    const auto& [one, other] = *overlap;
    throw InputError({.code = Code::kBlockOverlap,
                      .what = "sharded files hold a part of a tensor twice",
                      .where = concat(where, ", ", format_name(tensor.name)),
                      .why = concat("expected each element of ",
                                    to_string(tensor.shape),
                                    " once, got ",
                                    to_string(one->box.shape),
                                    " from ",
                                    to_string(one->box.offsets),
                                    " in ",
                                    file_name(one->file),
                                    " and ",
                                    to_string(other->box.shape),
                                    " from ",
                                    to_string(other->box.offsets),
                                    " in ",
                                    file_name(other->file)),
                      .fix = "remove the files that another save left there; a writer that deletes nothing leaves the "
                             "shards of a save on more ranks"});
  }
  std::uint64_t held = 0;
  for (const StoredBlock& block : tensor.blocks) {
    held += static_cast<std::uint64_t>(numel(block.box.shape));
  }
  if (held != static_cast<std::uint64_t>(numel(tensor.shape))) {
    throw_missing(tensor, where, held, file_name);
  }
}

} // namespace tieshard
