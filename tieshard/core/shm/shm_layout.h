// tieshard/core/shm/shm_layout.h
//
// What lies where in the memory that the ranks share: one header, a block of counters for each rank, and a ring of
// pieces for each rank. Only that rank writes its block and its ring.
//
// Flow: shm_group -> [this]

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/shm/shared_counter.h"
#include "tieshard/core/shm/shared_memory.h"

namespace tieshard {

enum class Collective : std::uint32_t {
  kNone,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kAllToAll
};

enum class Reduction : std::uint32_t { kSum, kMin, kMax };

/// "all_gather", as messages and torch spell it.
const char* name(Collective collective);

/// What a call is for, as its caller says: a unit, or a stage. Without it, calls of equal size would be paired whatever
/// they belong to.
struct CallPurpose {
  std::uint64_t hash = 0;      ///< of the whole text; 0 where nothing was said
  std::array<char, 64> text{}; ///< the text's end, for messages; zeros behind it

  static CallPurpose of(std::string_view text);

  friend bool operator==(const CallPurpose& one, const CallPurpose& other) {
    return one.hash == other.hash;
  }
};

/// What a rank is doing; all ranks must do the same.
struct Call {
  Collective collective = Collective::kNone;
  Reduction reduction = Reduction::kSum;
  DType dtype = DType::kU8;
  std::uint32_t root = 0;  ///< of a broadcast
  std::uint64_t bytes = 0; ///< of one rank's part
  CallPurpose purpose{};   ///< set by ShmGroup::begin

  friend bool operator==(const Call&, const Call&) = default;
};

/// "all_reduce (min, F32) of 16 bytes for unit layers.3".
std::string to_string(const Call& call);

inline constexpr std::uint32_t kRingPieces = 4;

/// How the memory is cut, and where the count of steps begins (only tests begin elsewhere than at 0).
struct ShmShape {
  std::uint32_t ranks = 2;
  std::uint32_t first_step = 0;
  std::uint64_t piece_bytes = 128 << 10; ///< a multiple of 64, at least 64 * ranks
};

/// The counters of one rank.
struct RankBlock {
  SharedCounter posted;   ///< steps whose piece lies in the ring
  SharedCounter released; ///< steps that this rank no longer reads from anybody's ring
  SharedCounter presence; ///< 0: not here yet; 1: here; 2: has left
  alignas(64) std::atomic<std::int64_t> process;
  alignas(64) std::array<Call, kRingPieces> calls; ///< what each piece of the ring belongs to
  std::array<char, 512> report; ///< of a kOtherCall that this rank saw: who was where; written before the failure
};

/// The first failure that any rank saw, packed into one word: later ones are consequences.
struct ShmFailure {
  enum class Kind : std::uint8_t { kNone, kEnded, kLate, kOtherCall };
  Kind kind = Kind::kNone;
  std::uint16_t culprit = 0; ///< whose fault it is
  std::uint16_t witness = 0; ///< who saw it

  std::uint64_t packed() const {
    return static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint64_t>(culprit) << 16 | witness;
  }
  static ShmFailure unpacked(std::uint64_t word) {
    return {static_cast<Kind>(word >> 32 & 0xFF),
            static_cast<std::uint16_t>(word >> 16 & 0xFFFF),
            static_cast<std::uint16_t>(word & 0xFFFF)};
  }
};

struct ShmHeader {
  ShmShape shape;
  alignas(64) std::atomic<std::uint64_t> failure;
};

inline constexpr std::uint32_t kMostShmRanks = 1024;

/// New memory for `shape.ranks` ranks, ready to be joined. @throws PeerError io-failed
std::shared_ptr<SharedMemory> make_shm(const ShmShape& shape);

/// The parts of memory that make_shm made, here or in another process.
class ShmLayout {
 public:
  explicit ShmLayout(std::shared_ptr<SharedMemory> memory);

  ShmHeader& header() const {
    return *reinterpret_cast<ShmHeader*>(memory_->data());
  }
  RankBlock& block(std::uint32_t rank) const {
    return *reinterpret_cast<RankBlock*>(memory_->data() + sizeof(ShmHeader) + rank * sizeof(RankBlock));
  }
  /// The piece of `rank`'s ring that step `step` uses.
  std::byte* piece(std::uint32_t rank, std::uint32_t step) const {
    const std::uint64_t index = std::uint64_t{rank} * kRingPieces + step % kRingPieces;
    return memory_->data() + sizeof(ShmHeader) + ranks_ * sizeof(RankBlock) + index * piece_bytes_;
  }
  std::uint32_t ranks() const {
    return ranks_;
  }
  std::uint64_t piece_bytes() const {
    return piece_bytes_;
  }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::uint32_t ranks_;
  std::uint64_t piece_bytes_;
};

} // namespace tieshard
