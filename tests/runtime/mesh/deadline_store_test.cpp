// A store whose host does not answer.

#include "tieshard/runtime/mesh/deadline_store.h"

#include <condition_variable>
#include <mutex>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/roll_call.h"

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Stops answering after so many questions, until the end of the test.
class StoppedStore : public c10d::HashStore {
 public:
  explicit StoppedStore(int answers) : answers_(answers) {}

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    wait_if_stopped();
    HashStore::set(key, value);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    wait_if_stopped();
    return HashStore::get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    wait_if_stopped();
    return HashStore::check(keys);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    wait_if_stopped();
    HashStore::wait(keys, timeout);
  }

  void go_on() {
    const std::lock_guard lock(mutex_);
    answers_ = 1 << 30;
    changed_.notify_all();
  }

 private:
  void wait_if_stopped() {
    std::unique_lock lock(mutex_);
    --answers_;
    changed_.wait(lock, [this] { return answers_ >= 0; });
  }

  int answers_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

class DeadlineStoreTest : public ::testing::Test {
 protected:
  c10::intrusive_ptr<StoppedStore> stopped(int answers) {
    stores_.push_back(c10::make_intrusive<StoppedStore>(answers));
    return stores_.back();
  }
  ~DeadlineStoreTest() override {
    for (const auto& store : stores_) {
      store->go_on();
    }
  }

 private:
  std::vector<c10::intrusive_ptr<StoppedStore>> stores_;
};

TEST_F(DeadlineStoreTest, AnswersAsTheStoreInsideIt) {
  DeadlineStore store(c10::make_intrusive<c10d::HashStore>(), seconds(20));
  store.set("a", std::vector<std::uint8_t>{1, 2});
  EXPECT_TRUE(store.check({"a"}));
  EXPECT_FALSE(store.check({"a", "b"}));
  EXPECT_EQ(store.get("a"), (std::vector<std::uint8_t>{1, 2}));
  EXPECT_EQ(store.add("n", 2), 2);
  EXPECT_EQ(store.add("n", 3), 5);
  store.wait({"a"});
  EXPECT_TRUE(store.deleteKey("a"));
  EXPECT_FALSE(store.check({"a"}));
}

TEST_F(DeadlineStoreTest, EndsEveryQuestionThatIsNotAnswered) {
  const std::vector<std::function<void(c10d::Store&)>> questions = {
      [](c10d::Store& store) { store.set("a", std::vector<std::uint8_t>{}); },
      [](c10d::Store& store) { store.get("a"); },
      [](c10d::Store& store) { store.check({"a"}); },
      [](c10d::Store& store) { store.wait({"a"}, milliseconds(100)); }};
  for (const auto& question : questions) {
    DeadlineStore store(stopped(0), milliseconds(100));
    EXPECT_THROW(question(store), StoreIsSilent);
  }
}

TEST_F(DeadlineStoreTest, WaitsForASilentStoreOnce) {
  DeadlineStore store(stopped(1), milliseconds(500));
  store.set("a", std::vector<std::uint8_t>{});
  EXPECT_THROW(store.check({"a"}), StoreIsSilent);
  store.setTimeout(seconds(600));
  EXPECT_THROW(store.check({"a"}), StoreIsSilent); // else this test would take ten minutes
}

TEST_F(DeadlineStoreTest, EndsAnAttemptToConnect) {
  const auto store = stopped(0);
  const auto connect = [store]() -> c10::intrusive_ptr<c10d::Store> {
    store->check({"a"});
    return store;
  };
  EXPECT_THROW(DeadlineStore(connect, milliseconds(100)), StoreIsSilent);
}

/// Rank 0, or its host, is stopped after any number of answers: each stage of a roll call ends, and says who and where.
TEST_F(DeadlineStoreTest, ARollCallEndsByItsTimeoutWhereverTheStoreFallsSilent) {
  for (int answers = 0; answers < 6; ++answers) {
    const auto inner = stopped(answers);
    c10d::PrefixStore store("group", c10::make_intrusive<DeadlineStore>(inner, seconds(600)));
    RollCall calls(store, 1, {0, 1, 2}, milliseconds(300));
    const auto start = Clock::now();
    expect_refusal([&] { calls.all("host"); },
                   Code::kRendezvousFailed,
                   {"rank 1", "rank 0, which keeps the store", "does not answer", "stage \"host\" of connecting"});
    EXPECT_LT(Clock::now() - start, seconds(60)) << answers; // of 600
  }
}

} // namespace
} // namespace tieshard::testing
