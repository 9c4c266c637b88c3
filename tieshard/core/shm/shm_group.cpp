#include "tieshard/core/shm/shm_group.h"

#include <algorithm>
#include <utility>

#include <sched.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint32_t kHere = 1;
constexpr std::uint32_t kLeft = 2;

/// How long a sleeping rank goes without looking whether the others still run.
constexpr milliseconds kSlice{20};

/// Looks at a counter before going to sleep: a few microseconds where each rank can have a core, else next to none.
/// Both longer looking and sched_yield were measured: alone they gain little, beside other work they lose most of the
/// rate (the scheduler leaves two ranks on one core, where one looks while the other could run).
int spins_for(std::uint32_t ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool known = ::sched_getaffinity(0, sizeof(cores), &cores) == 0;
  return known && static_cast<std::uint32_t>(CPU_COUNT(&cores)) >= ranks ? 200 : 20;
}

} // namespace

ShmGroup::ShmGroup(std::shared_ptr<SharedMemory> memory,
                   std::uint32_t rank,
                   milliseconds timeout,
                   std::vector<std::int64_t> names)
    : layout_(std::move(memory)),
      rank_(rank),
      timeout_(timeout),
      names_(std::move(names)),
      process_(::getpid()),
      spins_(spins_for(layout_.ranks())),
      posted_(layout_.header().shape.first_step),
      released_(posted_) {
  PeerWatch::require_support();
  block(rank_).process.store(process_, std::memory_order_relaxed);
  block(rank_).presence.advance_to(kHere);
}

ShmGroup::~ShmGroup() {
  if (process_ == ::getpid()) { // in a child of fork it is still the parent's place
    block(rank_).presence.advance_to(kLeft);
  }
}

void ShmGroup::meet() {
  begin({.collective = Collective::kBarrier});
  std::vector<std::int64_t> processes;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    wait(peer, block(peer).presence, kHere);
    processes.push_back(block(peer).process.load(std::memory_order_relaxed));
  }
  watch_ = PeerWatch(processes);
}

void ShmGroup::set_purpose(std::string_view text) {
  purpose_ = CallPurpose::of(text);
}

void ShmGroup::begin(const Call& call) {
  call_ = call;
  call_.purpose = std::exchange(purpose_, {});
  fail_if_failed();
}

std::byte* ShmGroup::piece_to_write() {
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (peer != rank_) {
      wait_for_release(peer);
    }
  }
  return layout_.piece(rank_, posted_);
}

bool ShmGroup::can_write() const {
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (!block(peer).released.has_reached(posted_ + 1 - kRingPieces)) {
      return false;
    }
  }
  return true;
}

void ShmGroup::post() {
  block(rank_).calls[posted_ % kRingPieces] = call_;
  block(rank_).posted.advance_to(++posted_);
}

const std::byte* ShmGroup::piece_of(std::uint32_t peer) {
  if (peer != rank_) {
    wait_for_post(peer);
    if (block(peer).calls[released_ % kRingPieces] != call_) {
      report_other_call(peer);
      fail({ShmFailure::Kind::kOtherCall, static_cast<std::uint16_t>(peer), static_cast<std::uint16_t>(rank_)});
    }
  }
  return layout_.piece(peer, released_);
}

void ShmGroup::release() {
  block(rank_).released.advance_to(++released_);
}

void ShmGroup::wait(std::uint32_t peer, SharedCounter& counter, std::uint32_t target) {
  if (counter.spin_until(target, spins_)) {
    return;
  }
  const auto deadline = Clock::now() + timeout_;
  while (!counter.sleep_until(target, kSlice)) {
    // In this order: what a rank did before it ended, or before another one failed, still counts.
    const bool ended = watch_.has_ended(peer) || block(peer).presence.has_reached(kLeft);
    const bool failed = layout_.header().failure.load(std::memory_order_acquire) != 0;
    if (counter.has_reached(target)) {
      return;
    }
    if (failed) {
      fail_if_failed();
    }
    if (ended) {
      fail({ShmFailure::Kind::kEnded, static_cast<std::uint16_t>(peer), static_cast<std::uint16_t>(rank_)});
    }
    if (Clock::now() >= deadline) {
      fail({ShmFailure::Kind::kLate, static_cast<std::uint16_t>(slowest(peer)), static_cast<std::uint16_t>(rank_)});
    }
  }
}

std::uint32_t ShmGroup::slowest(std::uint32_t awaited) const {
  const auto behind = [this](std::uint32_t peer) { // signed: counts wrap around
    const RankBlock& other = block(peer);
    return static_cast<std::int32_t>(other.posted.value() - posted_) +
           static_cast<std::int32_t>(other.released.value() - released_);
  };
  std::uint32_t last = awaited;
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (peer != rank_ && behind(peer) < behind(last)) {
      last = peer;
    }
  }
  return last;
}

void ShmGroup::fail_if_failed() const {
  const std::uint64_t word = layout_.header().failure.load(std::memory_order_acquire);
  if (word != 0) {
    fail(ShmFailure::unpacked(word));
  }
}

void ShmGroup::fail(ShmFailure failure) const {
  std::uint64_t first = 0;
  if (!layout_.header().failure.compare_exchange_strong(first, failure.packed(), std::memory_order_acq_rel)) {
    failure = ShmFailure::unpacked(first);
  }
  throw PeerError(
      {.code = Code::kCollectiveFailed,
       .what = "a collective failed, mostly because a rank is gone",
       .where = concat(name_of(rank_), names_.empty() ? concat("/", size()) : "", ", ", name(call_.collective)),
       .why = cause(failure),
       .fix = "look for the first rank that reported an error of its own; if none did, it was killed or "
              "stopped"});
}

/// The others read it once they have seen the failure, which only the first witness may publish.
void ShmGroup::report_other_call(std::uint32_t peer) {
  const std::string text = concat(
      "at ", to_string(call_), ", ", name_of(peer), " at ", to_string(block(peer).calls[released_ % kRingPieces]));
  std::array<char, 512>& report = block(rank_).report;
  report.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), report.size() - 1), report.begin());
}

std::string ShmGroup::name_of(std::uint32_t rank) const {
  return rank < names_.size() ? concat("rank ", names_[rank]) : concat("rank ", rank);
}

std::string ShmGroup::cause(const ShmFailure& failure) const {
  const std::string witness = failure.witness == rank_ ? "" : concat(name_of(failure.witness), " saw that ");
  const std::string culprit = name_of(failure.culprit);
  const std::string process = concat(" (process ", block(failure.culprit).process.load(), ")");
  switch (failure.kind) {
    case ShmFailure::Kind::kEnded:
      return concat(witness,
                    culprit,
                    process,
                    block(failure.culprit).presence.has_reached(kLeft) ? " has left the group" : " has ended");
    case ShmFailure::Kind::kLate:
      return concat(witness, culprit, process, " did not come within ", timeout_.count(), " ms");
    case ShmFailure::Kind::kOtherCall:
      return concat(failure.witness == rank_
                        ? "all ranks have to make the same calls in the same order: this rank is "
                        : concat(witness, culprit, " made another call: ", name_of(failure.witness), " is "),
                    block(failure.witness).report.data());
    case ShmFailure::Kind::kNone:
      break;
  }
  return "an earlier collective of this group failed";
}

} // namespace tieshard
