#include "tieshard/runtime/train/stop_signal.h"

#include <array>
#include <atomic>
#include <cstddef>

#include <signal.h>

namespace tieshard {
namespace {

constexpr std::array<int, 2> kSignals{SIGTERM, SIGUSR1};

std::atomic<int> first{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

int living = 0; ///< StopSignals objects
std::array<struct sigaction, kSignals.size()> before;
sigset_t mask_before;

void take_note(int signal) {
  int none = 0;
  first.compare_exchange_strong(none, signal);
}

} // namespace

StopSignals::StopSignals() {
  if (living++ > 0) {
    return;
  }
  first = 0;
  struct sigaction action{};
  action.sa_handler = take_note;
  action.sa_flags = SA_RESTART;
  sigset_t ours;
  ::sigemptyset(&ours);
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    ::sigaction(kSignals[index], nullptr, &before[index]);
    if (before[index].sa_handler != SIG_IGN) {
      ::sigaction(kSignals[index], &action, nullptr);
    }
    ::sigaddset(&ours, kSignals[index]);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &ours, &mask_before); // one that came since the program was started is taken now
}

StopSignals::~StopSignals() {
  if (--living > 0) {
    return;
  }
  ::pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    ::sigaction(kSignals[index], &before[index], nullptr);
  }
}

int StopSignals::received() noexcept {
  return first.load();
}

} // namespace tieshard
