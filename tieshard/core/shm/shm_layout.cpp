#include "tieshard/core/shm/shm_layout.h"

#include <algorithm>
#include <new>

#include "tieshard/core/base/error.h"

namespace tieshard {

const char* name(Collective collective) {
  switch (collective) {
    case Collective::kNone:
      return "no collective";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
    case Collective::kAllToAll:
      return "all_to_all";
  }
  return "?";
}

CallPurpose CallPurpose::of(std::string_view text) {
  CallPurpose purpose;
  if (text.empty()) {
    return purpose;
  }
  purpose.hash = 14695981039346656037ULL; // FNV-1a
  for (const char letter : text) {
    purpose.hash = (purpose.hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  }
  const std::size_t room = purpose.text.size() - 1;
  const std::string shown =
      text.size() <= room ? std::string(text) : concat("...", text.substr(text.size() - room + 3));
  std::ranges::copy(shown, purpose.text.begin());
  return purpose;
}

std::string to_string(const Call& call) {
  const bool reduces = call.collective == Collective::kReduceScatter || call.collective == Collective::kAllReduce;
  constexpr const char* kReductions[] = {"sum", "min", "max"};
  return concat(name(call.collective),
                reduces ? concat(" (", kReductions[static_cast<int>(call.reduction)], ", ", name(call.dtype), ")") : "",
                call.collective == Collective::kBroadcast ? concat(" from rank ", call.root) : "",
                call.collective == Collective::kBarrier ? "" : concat(" of ", call.bytes, " bytes"),
                call.purpose.hash == 0 ? "" : concat(" for ", call.purpose.text.data()));
}

std::shared_ptr<SharedMemory> make_shm(const ShmShape& shape) {
  if (shape.ranks < 1 || shape.ranks > kMostShmRanks || shape.piece_bytes % 64 != 0 ||
      shape.piece_bytes < std::uint64_t{64} * shape.ranks) {
    throw InternalError({.code = Code::kBug,
                         .what = "shared memory of an impossible shape",
                         .why = concat("expected 1 to ",
                                       kMostShmRanks,
                                       " ranks and pieces of a multiple of 64 bytes, at least 64 a rank; got ",
                                       shape.ranks,
                                       " ranks and ",
                                       shape.piece_bytes,
                                       " bytes"),
                         .fix = "report it"});
  }
  auto memory = SharedMemory::create(sizeof(ShmHeader) + shape.ranks * sizeof(RankBlock) +
                                     std::uint64_t{shape.ranks} * kRingPieces * shape.piece_bytes);
  auto* header = new (memory->data()) ShmHeader{};
  header->shape = shape;
  auto* blocks = new (memory->data() + sizeof(ShmHeader)) RankBlock[shape.ranks]{};
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    blocks[rank].posted.advance_to(shape.first_step);
    blocks[rank].released.advance_to(shape.first_step);
  }
  return memory;
}

ShmLayout::ShmLayout(std::shared_ptr<SharedMemory> memory)
    : memory_(std::move(memory)), ranks_(header().shape.ranks), piece_bytes_(header().shape.piece_bytes) {}

} // namespace tieshard
