#include "tieshard/runtime/mesh/roll_call.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/deadline_store.h"

namespace tieshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Between two questions of a waiting rank, once it has waited a while.
constexpr milliseconds kLongestPause{100};
/// How long rank 0, which mostly keeps the store, waits for the others to see why the ranks give up.
constexpr milliseconds kFarewell{2000};
constexpr milliseconds kTick{20};

constexpr const char* kFailed = "failed";

std::string key_of(const std::string& stage, std::size_t place) {
  return concat(stage, "/", place);
}

/// Of a rank whose work in the stage failed: it is there, and may not be taken for one that is through.
std::string failed_key_of(const std::string& stage, std::size_t place) {
  return concat(stage, "/failed/", place);
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

} // namespace

std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  constexpr std::size_t kShown = 8;
  if (ranks.size() == 1) {
    return concat("rank ", ranks.front());
  }
  std::string text = "ranks ";
  const std::size_t shown = std::min(ranks.size(), kShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == ranks.size();
    text += concat(i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  return ranks.size() > shown ? concat(text, " and ", ranks.size() - shown, " more") : text;
}

RollCall::RollCall(c10d::Store& store, std::size_t place, std::vector<std::int64_t> ranks, milliseconds timeout)
    : store_(store), place_(place), ranks_(std::move(ranks)), timeout_(timeout) {}

/// No question may take longer than is left of the stage; but where its end has to be told to the others, a moment.
template <typename Question>
auto RollCall::ask(const Question& question) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
  try {
    store_.setTimeout(std::max(left, kFarewell));
    return question();
  } catch (const StoreIsSilent& error) {
    fail(concat("rank 0, which keeps the store where the ranks meet, or its launcher does not answer (",
                error.what(),
                "): it was stopped, or its host cannot be reached"));
  } catch (const std::exception& error) {
    fail(concat("rank 0, which keeps the store where the ranks meet, or its launcher has ended: ", first_line(error)));
  }
}

/// The first rank collects, so it knows best who is missing: the others let it speak first.
void RollCall::begin(const std::string& stage) {
  stage_ = stage;
  deadline_ = Clock::now() + timeout_ + (place_ == 0 ? milliseconds(0) : kFarewell / 2);
}

void RollCall::put(const std::string& key, const std::string& text) {
  ask([&] { store_.set(key, std::vector<std::uint8_t>(text.begin(), text.end())); });
}

std::string RollCall::take(const std::string& key) {
  const std::vector<std::uint8_t> bytes = ask([&] { return store_.get(key); });
  return {bytes.begin(), bytes.end()};
}

bool RollCall::here(const std::vector<std::string>& keys) {
  return ask([&] { return store_.check(keys); });
}

bool RollCall::came(const std::string& stage, std::size_t place) {
  return here({key_of(stage, place)}) || here({failed_key_of(stage, place)});
}

std::vector<std::string> RollCall::all(const std::string& stage, const std::string& text) {
  begin(stage);
  ++stages_;
  const std::string all_key = concat(stage, "/all");
  put(key_of(stage, place_), text);
  if (place_ == 0) { // it collects, so that the store answers n and not n * n questions
    std::vector<std::string> keys;
    for (std::size_t place = 0; place < size(); ++place) {
      keys.push_back(key_of(stage, place));
    }
    wait_for(stage, keys);
    std::vector<std::string> texts;
    for (const std::string& key : keys) {
      texts.push_back(take(key));
    }
    put(all_key, nlohmann::json(texts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return texts;
  }
  wait_for(stage, {all_key});
  return nlohmann::json::parse(take(all_key)).get<std::vector<std::string>>();
}

void RollCall::together(const std::string& stage, const std::function<void()>& work) {
  begin(stage);
  try {
    store_.setTimeout(timeout_);
    work();
  } catch (const StoreIsSilent&) { // nobody else can be told
    fail("rank 0, which keeps the store where the ranks meet, or its launcher does not answer");
  } catch (const std::exception& error) {
    put(failed_key_of(stage, place_), {});
    const auto deadline = Clock::now() + kFarewell;
    while (!missing(stage).empty() && Clock::now() < deadline && !here({kFailed})) {
      std::this_thread::sleep_for(kTick);
    }
    if (here({kFailed})) { // of a rank that saw more than this one
      const std::string why = take(kFailed);
      take_leave(stage);
      fail(why);
    }
    const std::vector<std::int64_t> absent = missing(stage);
    const std::string why = absent.empty()
                                ? concat("rank ", ranks_[place_], ": ", first_line(error))
                                : concat(ranks_text(absent), " came, and is not through: ", first_line(error));
    abandon(why);
    fail(why);
  }
  all(stage);
}

void RollCall::abandon(const std::string& why) {
  put(kFailed, why);
  take_leave(stage_);
}

/// By asking again and again: a wait of the store cannot be ended by another rank, and its end is logged by c10d.
void RollCall::wait_for(const std::string& stage, const std::vector<std::string>& keys) {
  for (milliseconds pause(1); !here(keys); pause = std::min(2 * pause, kLongestPause)) {
    if (here({kFailed})) {
      const std::string why = take(kFailed);
      take_leave(stage);
      fail(why);
    }
    if (Clock::now() >= deadline_) {
      const std::string why = why_missing(stage);
      abandon(why);
      fail(why);
    }
    std::this_thread::sleep_for(pause);
  }
}

std::vector<std::int64_t> RollCall::missing(const std::string& stage) {
  std::vector<std::int64_t> absent;
  for (std::size_t place = 0; place < size(); ++place) {
    if (!came(stage, place)) {
      absent.push_back(ranks_[place]);
    }
  }
  return absent;
}

std::string RollCall::why_missing(const std::string& stage) {
  std::vector<std::int64_t> absent = missing(stage);
  if (absent.empty()) { // all came, and then the one that collects what they said did not go on
    absent.push_back(ranks_.front());
  }
  return concat("waited up to ",
                static_cast<double>(timeout_.count()) / 1000,
                " s for ",
                ranks_text(absent),
                stages_ <= 1 ? ", which did not come" : ", which came and was then not heard of");
}

void RollCall::take_leave(const std::string& stage) {
  put(key_of("heard", place_), {});
  if (ranks_[place_] != 0) { // and then asks no more: the store may end at any moment
    return;
  }
  const auto deadline = Clock::now() + kFarewell;
  for (std::size_t place = 0; place < size(); ++place) {
    while (came(stage, place) && !here({key_of("heard", place)}) && Clock::now() < deadline) {
      std::this_thread::sleep_for(kTick);
    }
  }
}

void RollCall::fail(const std::string& why) const {
  throw PeerError({.code = Code::kRendezvousFailed,
                   .what = "the ranks did not find each other",
                   .where = concat("rank ", ranks_[place_]),
                   .why = concat(why, " (in stage \"", stage_, "\" of connecting)"),
                   .fix = "look at what those ranks say; start every rank, with the same MASTER_ADDR and MASTER_PORT"});
}

} // namespace tieshard
