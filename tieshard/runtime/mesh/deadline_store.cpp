#include "tieshard/runtime/mesh/deadline_store.h"

#include <atomic>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

using std::chrono::milliseconds;

/// By how much longer a call may take in which the store itself waits for a key: it ends that wait in better words.
constexpr milliseconds kMargin{1000};

std::atomic<bool>& left_behind() {
  static std::atomic<bool> left{false};
  return left;
}

/// What `work` gives, or StoreIsSilent. `work` must hold all that it uses.
template <typename Work>
auto within(milliseconds limit, Work work) -> std::invoke_result_t<Work> {
  std::packaged_task<std::invoke_result_t<Work>()> task(std::move(work));
  auto answer = task.get_future();
  std::thread thread(std::move(task));
  if (answer.wait_for(limit) != std::future_status::ready) {
    left_behind() = true;
    thread.detach();
    throw StoreIsSilent(concat("no answer within ", static_cast<double>(limit.count()) / 1000, " s"));
  }
  thread.join();
  return answer.get();
}

} // namespace

bool left_a_question_behind() {
  return left_behind();
}

DeadlineStore::DeadlineStore(std::function<c10::intrusive_ptr<c10d::Store>()> make, milliseconds limit)
    : Store(limit), inner_(within(limit, std::move(make))) {}

DeadlineStore::DeadlineStore(c10::intrusive_ptr<c10d::Store> inner, milliseconds timeout)
    : Store(timeout), inner_(std::move(inner)) {}

template <typename Question>
auto DeadlineStore::ask(milliseconds limit, Question question) {
  if (silent_) {
    throw StoreIsSilent("no answer to an earlier question");
  }
  try {
    return within(limit, [inner = inner_, question = std::move(question)] { return question(*inner); });
  } catch (const StoreIsSilent&) {
    silent_ = true;
    throw;
  }
}

c10::intrusive_ptr<c10d::Store> DeadlineStore::clone() {
  return c10::make_intrusive<DeadlineStore>(ask(timeout_, [](Store& store) { return store.clone(); }), timeout_);
}

void DeadlineStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  ask(timeout_, [key, value](Store& store) { store.set(key, value); });
}

std::vector<std::uint8_t> DeadlineStore::compareSet(const std::string& key,
                                                    const std::vector<std::uint8_t>& expected,
                                                    const std::vector<std::uint8_t>& desired) {
  return ask(timeout_, [=](Store& store) { return store.compareSet(key, expected, desired); });
}

std::vector<std::uint8_t> DeadlineStore::get(const std::string& key) {
  return ask(timeout_ + kMargin, [key](Store& store) { return store.get(key); });
}

std::int64_t DeadlineStore::add(const std::string& key, std::int64_t value) {
  return ask(timeout_, [key, value](Store& store) { return store.add(key, value); });
}

bool DeadlineStore::deleteKey(const std::string& key) {
  return ask(timeout_, [key](Store& store) { return store.deleteKey(key); });
}

bool DeadlineStore::check(const std::vector<std::string>& keys) {
  return ask(timeout_, [keys](Store& store) { return store.check(keys); });
}

std::int64_t DeadlineStore::getNumKeys() {
  return ask(timeout_, [](Store& store) { return store.getNumKeys(); });
}

void DeadlineStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void DeadlineStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  ask(timeout + kMargin, [keys, timeout](Store& store) { store.wait(keys, timeout); });
}

void DeadlineStore::setTimeout(const milliseconds& timeout) {
  timeout_ = timeout;
  if (!silent_) {
    inner_->setTimeout(timeout);
  }
}

void DeadlineStore::append(const std::string& key, const std::vector<std::uint8_t>& value) {
  ask(timeout_, [key, value](Store& store) { store.append(key, value); });
}

std::vector<std::vector<std::uint8_t>> DeadlineStore::multiGet(const std::vector<std::string>& keys) {
  return ask(timeout_ + kMargin, [keys](Store& store) { return store.multiGet(keys); });
}

void DeadlineStore::multiSet(const std::vector<std::string>& keys,
                             const std::vector<std::vector<std::uint8_t>>& values) {
  ask(timeout_, [keys, values](Store& store) { store.multiSet(keys, values); });
}

bool DeadlineStore::hasExtendedApi() const {
  return inner_->hasExtendedApi();
}

} // namespace tieshard
