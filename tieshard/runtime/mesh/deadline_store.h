// tieshard/runtime/mesh/deadline_store.h
//
// The store where the ranks meet, with an end to every question: TCPStore itself waits without one for an answer of a
// host that is stopped, or has lost its network.
//
// Flow: process_group -> [this] -> c10d TCPStore

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tieshard {

/// The store did not answer in time; what() says how long that was.
class StoreIsSilent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Every call goes to `inner` from a thread of its own, which is left behind where no answer comes; it holds what it
/// works on. After that each call throws at once: nobody waits twice.
class DeadlineStore final : public c10d::Store {
 public:
  /// Connects: runs `make`, at most `limit` long. @throws StoreIsSilent, and what `make` throws
  DeadlineStore(std::function<c10::intrusive_ptr<c10d::Store>()> make, std::chrono::milliseconds limit);
  /// @param timeout  of each call, until setTimeout
  DeadlineStore(c10::intrusive_ptr<c10d::Store> inner, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  /// Of each later call; also how long get() and wait() let the store wait for a key.
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override;

 private:
  template <typename Question>
  auto ask(std::chrono::milliseconds limit, Question question);

  c10::intrusive_ptr<c10d::Store> inner_;
  bool silent_ = false;
};

/// True once a question was left without an answer: its thread may still be at work.
bool left_a_question_behind();

} // namespace tieshard
