// tieshard/runtime/mesh/roll_call.h
//
// The ranks of a group while they connect: each stage waits for all of them, and the ranks that do not come are named
// on every rank that did.
//
// Flow:   process_group -> [this] -> the store where the ranks meet; asked by shm_rendezvous
// Source: torch.distributed.monitored_barrier, in that it names the ranks that are missing.
//
// What one rank finds out ends the stage on all of them, also where their own time is not up yet. A store that does not
// answer (the host of rank 0 is stopped, or cut off) ends it too, where the store keeps its timeout: DeadlineStore
// does.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tieshard {

/// Every rank of the group must go through the same stages in the same order. A stage's name is used once.
class RollCall {
 public:
  /// @param store    only this group's; must outlive this
  /// @param place    of this rank in `ranks`
  /// @param ranks    the group's, as numbers among all ranks, which messages use
  /// @param timeout  longest wait for another rank in each stage
  RollCall(c10d::Store& store, std::size_t place, std::vector<std::int64_t> ranks, std::chrono::milliseconds timeout);

  /// Waits until every rank has come to `stage`; gives what each has said there, in the order of `ranks`.
  /// @throws PeerError rendezvous-failed, naming the ranks that did not come, on every rank that did
  std::vector<std::string> all(const std::string& stage, const std::string& text = {});

  /// Runs what the ranks do together by other means, then waits for all. Where `work` throws, the ranks that are not
  /// through with it a moment later are named. @throws PeerError rendezvous-failed
  void together(const std::string& stage, const std::function<void()>& work);

  /// Ends the stage that the others are in, or come to, with this reason. To be called once, before this rank leaves.
  void abandon(const std::string& why);

  std::size_t place() const noexcept {
    return place_;
  }
  std::size_t size() const noexcept {
    return ranks_.size();
  }
  const std::vector<std::int64_t>& ranks() const noexcept {
    return ranks_;
  }
  std::chrono::milliseconds timeout() const noexcept {
    return timeout_;
  }
  c10d::Store& store() const noexcept {
    return store_;
  }

 private:
  template <typename Question>
  auto ask(const Question& question);
  void begin(const std::string& stage);
  void put(const std::string& key, const std::string& text);
  std::string take(const std::string& key);
  bool here(const std::vector<std::string>& keys);
  bool came(const std::string& stage, std::size_t place);
  void wait_for(const std::string& stage, const std::vector<std::string>& keys);
  std::vector<std::int64_t> missing(const std::string& stage);
  std::string why_missing(const std::string& stage);
  void take_leave(const std::string& stage);
  [[noreturn]] void fail(const std::string& why) const;

  c10d::Store& store_;
  std::size_t place_;
  std::vector<std::int64_t> ranks_;
  std::chrono::milliseconds timeout_;
  std::string stage_;                              ///< the last one
  std::chrono::steady_clock::time_point deadline_; ///< of this rank's waits in it
  int stages_ = 0;
};

/// "rank 3", "ranks 0, 1 and 3"; of many the first few.
std::string ranks_text(const std::vector<std::int64_t>& ranks);

} // namespace tieshard
