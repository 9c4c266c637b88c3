#include "tieshard/core/shm/shm_collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tieshard/core/shm/reduce_elements.h"
#include "tieshard/core/shm/shm_steps.h"

namespace tieshard {
namespace {

/// An all_reduce of up to so many bytes is reduced by every rank for itself: one wait instead of two.
constexpr std::size_t kSmall = 16 << 10;

void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes != 0) { // memcpy takes no null, not even for nothing
    std::memcpy(target, source, bytes);
  }
}

/// What all ranks have at `offset` of this step's pieces, in rank order.
void pieces_of_all(ShmGroup& group, std::size_t offset, std::vector<const std::byte*>& pieces) {
  pieces.resize(group.size());
  for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
    pieces[peer] = group.piece_of(peer) + offset;
  }
}

/// One window of an all_reduce, at most a piece long. Each rank reduces one part of it and hands that on.
void all_reduce_window(ShmGroup& group, std::byte* data, std::size_t bytes, DType dtype, Reduction reduction) {
  const std::size_t part = (bytes / group.size() / 64 + 1) * 64;
  const auto begin_of = [&](std::uint32_t rank) { return std::min(bytes, rank * part); };
  const auto bytes_of = [&](std::uint32_t rank) { return begin_of(rank + 1) - begin_of(rank); };
  copy_bytes(group.piece_to_write(), data, bytes);
  group.post();
  std::byte* reduced = group.piece_to_write();
  std::vector<const std::byte*> pieces;
  pieces_of_all(group, begin_of(group.rank()), pieces);
  reduce_elements(
      reduction, dtype, reduced, pieces, bytes_of(group.rank()) * 8 / static_cast<std::size_t>(bits(dtype)));
  group.release();
  group.post();
  for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
    copy_bytes(data + begin_of(peer), group.piece_of(peer), bytes_of(peer));
  }
  group.release();
}

} // namespace

void all_gather(ShmGroup& group, std::byte* output, const std::byte* input, std::size_t bytes) {
  group.begin({.collective = Collective::kAllGather, .bytes = bytes});
  const std::size_t piece = group.piece_bytes();
  const auto length_of = [&](std::size_t step) { return std::min(piece, bytes - step * piece); };
  std::byte* own = output + group.rank() * bytes;
  const auto write = [&](std::size_t step, std::byte* target) {
    copy_bytes(target, input + step * piece, length_of(step));
    if (own != input) {
      copy_bytes(own + step * piece, input + step * piece, length_of(step));
    }
  };
  const auto read = [&](std::size_t step) {
    for (std::uint32_t i = 1; i < group.size(); ++i) { // not all from the same rank at once
      const std::uint32_t peer = (group.rank() + i) % group.size();
      copy_bytes(output + peer * bytes + step * piece, group.piece_of(peer), length_of(step));
    }
  };
  run_steps(group, steps_for(bytes, piece), write, read);
}

void reduce_scatter(
    ShmGroup& group, std::byte* output, const std::byte* input, std::size_t count, DType dtype, Reduction reduction) {
  const std::size_t element = static_cast<std::size_t>(bits(dtype)) / 8;
  const std::size_t bytes = count * element;
  group.begin({.collective = Collective::kReduceScatter, .reduction = reduction, .dtype = dtype, .bytes = bytes});
  // A piece holds one part for each other rank; this rank's own is taken from the input.
  const std::uint32_t others = group.size() - 1;
  const std::size_t part = group.piece_bytes() / std::max<std::uint32_t>(1, others) / 64 * 64;
  const auto length_of = [&](std::size_t step) { return std::min(part, bytes - step * part); };
  const auto write = [&](std::size_t step, std::byte* target) {
    for (std::uint32_t i = 0; i < others; ++i) {
      const std::uint32_t peer = i < group.rank() ? i : i + 1;
      copy_bytes(target + i * part, input + peer * bytes + step * part, length_of(step));
    }
  };
  std::vector<const std::byte*> arrays(group.size());
  const auto read = [&](std::size_t step) {
    for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
      arrays[peer] = peer == group.rank()
                         ? input + peer * bytes + step * part
                         : group.piece_of(peer) + (group.rank() < peer ? group.rank() : group.rank() - 1) * part;
    }
    reduce_elements(reduction, dtype, output + step * part, arrays, length_of(step) / element);
  };
  run_steps(group, steps_for(bytes, part), write, read);
}

void all_reduce(ShmGroup& group, std::byte* data, std::size_t count, DType dtype, Reduction reduction) {
  const std::size_t bytes = count * static_cast<std::size_t>(bits(dtype)) / 8;
  group.begin({.collective = Collective::kAllReduce, .reduction = reduction, .dtype = dtype, .bytes = bytes});
  const std::size_t piece = group.piece_bytes();
  if (bytes > std::min(kSmall, piece)) {
    for (std::size_t begin = 0; begin < bytes; begin += piece) {
      all_reduce_window(group, data + begin, std::min(piece, bytes - begin), dtype, reduction);
    }
    return;
  }
  copy_bytes(group.piece_to_write(), data, bytes);
  group.post();
  std::vector<const std::byte*> pieces;
  pieces_of_all(group, 0, pieces);
  reduce_elements(reduction, dtype, data, pieces, count);
  group.release();
}

void broadcast(ShmGroup& group, std::byte* data, std::size_t bytes, std::uint32_t root) {
  group.begin({.collective = Collective::kBroadcast, .root = root, .bytes = bytes});
  const std::size_t piece = group.piece_bytes();
  const auto length_of = [&](std::size_t step) { return std::min(piece, bytes - step * piece); };
  const auto write = [&](std::size_t step, std::byte* target) {
    if (group.rank() == root) {
      copy_bytes(target, data + step * piece, length_of(step));
    }
  };
  const auto read = [&](std::size_t step) {
    if (group.rank() != root) {
      copy_bytes(data + step * piece, group.piece_of(root), length_of(step));
    }
  };
  run_steps(group, steps_for(bytes, piece), write, read);
}

void barrier(ShmGroup& group) {
  group.begin({.collective = Collective::kBarrier});
  group.piece_to_write();
  group.post();
  for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
    group.piece_of(peer);
  }
  group.release();
}

} // namespace tieshard
