#include "tieshard/core/shm/shm_regions.h"

#include <array>
#include <bit>
#include <cstdint>

#include "tieshard/core/shm/reduce_elements.h"
#include "tieshard/core/shm/region_cursor.h"
#include "tieshard/core/shm/shm_steps.h"

namespace tieshard {
namespace {

bool same_place(const Part& a, const Part& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const Region& one, const Region& other) {
           return one.data == other.data;
         });
}

std::size_t most_bytes(std::span<const Part> parts) {
  std::size_t most = 0;
  for (const Part& part : parts) {
    most = std::max(most, bytes_of(part));
  }
  return most;
}

/// Bytes of a piece that are for one of the others.
std::size_t slot_bytes(const ShmGroup& group) {
  return group.piece_bytes() / std::max<std::uint32_t>(1, group.size() - 1) / 64 * 64;
}

/// Where in the pieces of `writer` the slot of `reader` lies: a rank has none for itself.
std::uint32_t slot_of(std::uint32_t reader, std::uint32_t writer) {
  return reader < writer ? reader : reader - 1;
}

std::vector<RegionCursor> cursors_of(std::span<const Part> parts) {
  return {parts.begin(), parts.end()};
}

void widen_bf16(std::byte* target, const std::byte* source, std::size_t count) {
  const auto* narrow = reinterpret_cast<const std::uint16_t*>(source);
  auto* wide = reinterpret_cast<std::uint32_t*>(target);
  for (std::size_t i = 0; i < count; ++i) {
    wide[i] = std::uint32_t{narrow[i]} << 16;
  }
}

/// The sum of one step's slots, one of each rank.
class SlotSum {
 public:
  SlotSum(std::uint32_t ranks, std::size_t slot, DType input, DType output)
      : input_(input), output_(output), arrays_(ranks), own_(slot), sum_(2 * slot), wide_(ranks) {
    if (input != output) {
      for (std::vector<std::byte>& wide : wide_) {
        wide.resize(2 * slot);
      }
    }
  }

  /// Where this rank's own input goes.
  std::byte* own() {
    return own_.data();
  }

  void set(std::uint32_t rank, const std::byte* slot) {
    arrays_[rank] = slot;
  }

  /// Sums `bytes` of input; gives the output and its size.
  std::span<const std::byte> add_up(std::size_t bytes) {
    const std::size_t count = bytes * 8 / static_cast<std::size_t>(bits(input_));
    if (input_ != output_) {
      for (std::size_t rank = 0; rank < arrays_.size(); ++rank) {
        widen_bf16(wide_[rank].data(), arrays_[rank], count);
        arrays_[rank] = wide_[rank].data();
      }
    }
    reduce_elements(Reduction::kSum, output_, sum_.data(), arrays_, count);
    return {sum_.data(), count * static_cast<std::size_t>(bits(output_)) / 8};
  }

 private:
  DType input_;
  DType output_;
  std::vector<const std::byte*> arrays_;
  std::vector<std::byte> own_;
  std::vector<std::byte> sum_;
  std::vector<std::vector<std::byte>> wide_;
};

} // namespace

std::size_t bytes_of(const Part& part) {
  std::size_t bytes = 0;
  for (const Region& region : part) {
    bytes += region.rows * region.row_bytes;
  }
  return bytes;
}

void copy_part(const Part& target, const Part& source) {
  std::array<std::byte, 16 << 10> piece; // stays in the cache
  RegionCursor from(source);
  RegionCursor to(target);
  for (std::size_t bytes = from.copy_to(piece.data(), piece.size()); bytes > 0;
       bytes = from.copy_to(piece.data(), piece.size())) {
    to.copy_from(piece.data(), bytes);
  }
}

void all_gather_regions(ShmGroup& group, std::span<const Part> outputs, const Part& input) {
  const std::size_t most = most_bytes(outputs);
  group.begin({.collective = Collective::kAllGather, .bytes = most});
  const std::size_t piece = group.piece_bytes();
  const bool in_place = same_place(outputs[group.rank()], input);
  RegionCursor source(input);
  std::vector<RegionCursor> targets = cursors_of(outputs);
  const auto write = [&](std::size_t, std::byte* target) {
    const std::size_t bytes = source.copy_to(target, piece);
    if (!in_place) {
      targets[group.rank()].copy_from(target, bytes);
    }
  };
  const auto read = [&](std::size_t) {
    for (std::uint32_t i = 1; i < group.size(); ++i) { // not all from the same rank at once
      const std::uint32_t peer = (group.rank() + i) % group.size();
      targets[peer].copy_from(group.piece_of(peer), piece);
    }
  };
  run_steps(group, steps_for(most, piece), write, read);
}

void reduce_scatter_regions(
    ShmGroup& group, const Part& output, std::span<const Part> inputs, DType input_dtype, DType output_dtype) {
  const std::size_t most = most_bytes(inputs);
  group.begin(
      {.collective = Collective::kReduceScatter, .reduction = Reduction::kSum, .dtype = input_dtype, .bytes = most});
  // A piece holds one slot for each other rank; this rank's own part is taken from where it lies.
  const std::uint32_t others = group.size() - 1;
  const std::size_t slot = slot_bytes(group);
  std::vector<RegionCursor> sources = cursors_of(inputs);
  RegionCursor target(output);
  SlotSum sum(group.size(), slot, input_dtype, output_dtype);
  const auto write = [&](std::size_t, std::byte* piece) {
    for (std::uint32_t i = 0; i < others; ++i) {
      const std::uint32_t peer = i < group.rank() ? i : i + 1;
      sources[peer].copy_to(piece + i * slot, slot);
    }
  };
  const auto read = [&](std::size_t) {
    const std::size_t bytes = sources[group.rank()].copy_to(sum.own(), slot);
    for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
      sum.set(peer, peer == group.rank() ? sum.own() : group.piece_of(peer) + slot_of(group.rank(), peer) * slot);
    }
    if (bytes > 0) {
      const std::span<const std::byte> result = sum.add_up(bytes);
      target.copy_from(result.data(), result.size());
    }
  };
  run_steps(group, steps_for(most, slot), write, read);
}

void all_to_all_regions(ShmGroup& group,
                        std::span<const Part> outputs,
                        std::span<const Part> inputs,
                        std::size_t most) {
  group.begin({.collective = Collective::kAllToAll, .bytes = most});
  const std::size_t slot = slot_bytes(group);
  std::vector<RegionCursor> sources = cursors_of(inputs);
  std::vector<RegionCursor> targets = cursors_of(outputs);
  const auto write = [&](std::size_t, std::byte* piece) {
    for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
      if (peer != group.rank()) {
        sources[peer].copy_to(piece + slot_of(peer, group.rank()) * slot, slot);
      }
    }
  };
  const auto read = [&](std::size_t) {
    for (std::uint32_t i = 1; i < group.size(); ++i) { // not all from the same rank at once
      const std::uint32_t peer = (group.rank() + i) % group.size();
      targets[peer].copy_from(group.piece_of(peer) + slot_of(group.rank(), peer) * slot, slot);
    }
  };
  run_steps(group, steps_for(most, slot), write, read);
  copy_part(outputs[group.rank()], inputs[group.rank()]);
}

} // namespace tieshard
