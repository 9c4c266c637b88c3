#include "tieshard/runtime/mesh/local_launcher.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tieshard {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& operation) {
  throw PeerError({.code = Code::kIoFailed,
                   .what = "the kernel refused to start a rank",
                   .where = operation,
                   .why = ::strerror(errno),
                   .fix = "check the process and file limits of this user (ulimit -a)"});
}

/// A port of the loopback interface that was free a moment ago.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (socket < 0 || ::bind(socket, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail("choosing a port on 127.0.0.1");
  }
  ::close(socket);
  return ntohs(address.sin_port);
}

/// In the child: becomes rank `rank`.
void become_rank(const LaunchOptions& options, std::int64_t rank, int port, pid_t launcher, const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) { // it died before prctl
    ::_exit(1);
  }
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(options.ranks).c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", std::to_string(options.ranks).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
}

std::string death_advice(int signal) {
  return signal == SIGKILL ? "signal 9 without a sender is mostly the kernel's out-of-memory killer: see its log; the "
                             "other ranks are being ended"
                           : "look at what the rank printed before, or run it under a debugger; the other ranks are "
                             "being ended";
}

/// A signal that this process was told to ignore (by nohup, or as a script's background job) stays ignored.
bool is_ignored(int signal) {
  struct sigaction action{};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

class Ranks {
 public:
  explicit Ranks(const LaunchOptions& options) : options_(options) {}

  /// True while there are ranks to start: none any more once all are to end.
  bool starting() const {
    return !ending() && next_ < options_.ranks;
  }

  /// @returns true in the new rank
  bool start_next(int port, const sigset_t& mask) {
    const pid_t launcher = ::getpid();
    std::fflush(nullptr); // else each rank would write what is buffered again
    const pid_t child = ::fork();
    if (child == 0) {
      become_rank(options_, next_, port, launcher, mask);
      return true;
    }
    if (child < 0) {
      signal_all(SIGKILL);
      fail(concat("fork of rank ", next_));
    }
    running_.emplace(child, next_++);
    return false;
  }

  /// Takes note of every rank that has ended.
  void reap() {
    int status = 0;
    for (pid_t child = ::waitpid(-1, &status, WNOHANG); child > 0; child = ::waitpid(-1, &status, WNOHANG)) {
      const auto found = running_.find(child);
      if (found == running_.end()) {
        continue;
      }
      const std::int64_t rank = found->second;
      running_.erase(found);
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code == 0 || ending()) {
        continue;
      }
      if (WIFSIGNALED(status) && options_.on_death) {
        options_.on_death(
            {.code = Code::kRankDied,
             .what = "a rank ended without a word",
             .where = concat("rank ", rank, "/", options_.ranks, ", process ", child),
             .why = concat("it was ended by signal ", WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ")"),
             .fix = death_advice(WTERMSIG(status))});
      }
      end(code);
    }
  }

  /// From now on the ranks are to end; `code` is what the launcher returns.
  void end(int code) {
    if (!ending()) {
      code_ = code;
      deadline_ = Clock::now() + options_.grace;
    }
  }

  /// Sends the signals that are due. Ranks that take SIGTERM for a wish to be saved are not sent it.
  void press() {
    if (ending() && Clock::now() >= deadline_) {
      const bool asked = pressed_ || options_.on_stop == OnStopSignal::kPassOn;
      if (asked) {
        report_stuck();
      }
      signal_all(asked ? SIGKILL : SIGTERM);
      pressed_ = true;
      deadline_ = Clock::now() + options_.grace;
    }
  }

  void signal_all(int signal) const {
    for (const auto& [child, rank] : running_) {
      ::kill(child, signal);
    }
  }

  bool any() const {
    return !running_.empty();
  }
  int code() const {
    return code_;
  }

 private:
  /// Names the ranks that did not end: mostly the one that the others waited for.
  void report_stuck() const {
    for (const auto& [child, rank] : running_) {
      if (options_.on_death) {
        options_.on_death(
            {.code = Code::kRankDied,
             .what = "a rank did not end when it was asked to",
             .where = concat("rank ", rank, "/", options_.ranks, ", process ", child),
             .why = concat(pressed_ ? "it ignored SIGTERM for " : "it went on after another one had failed, for ",
                           options_.grace.count() / 1000,
                           pressed_ ? " s: it was stopped, or hangs in the kernel"
                                    : " s: it computes, was stopped, or hangs in the kernel"),
             .fix = "it is being killed; if the others gave up waiting, this is the rank they waited for"});
      }
    }
  }

  bool ending() const {
    return code_ != 0;
  }

  const LaunchOptions& options_;
  std::int64_t next_ = 0; ///< rank
  std::map<pid_t, std::int64_t> running_;
  Clock::time_point deadline_{};
  bool pressed_ = false;
  int code_ = 0;
};

} // namespace

std::optional<int> launch_local(const LaunchOptions& options) {
  if (options.ranks < 1 || options.ranks > kMostLocalRanks) {
    throw InputError({.code = Code::kBadRankCount,
                      .what = "a number of ranks that one host cannot run",
                      .where = "--ranks",
                      .why = concat("expected 1 to ", kMostLocalRanks, ", got ", options.ranks),
                      .fix = "start one rank for each accelerator, or for a few processor cores"});
  }
  sigset_t waited;
  sigset_t before;
  ::sigemptyset(&waited);
  const bool passes_on = options.on_stop == OnStopSignal::kPassOn;
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, passes_on ? SIGUSR1 : SIGCHLD}) {
    if (signal == SIGCHLD || !is_ignored(signal)) {
      ::sigaddset(&waited, signal);
    }
  }
  bool passed_on = false;
  ::sigprocmask(SIG_BLOCK, &waited, &before);
  Ranks ranks(options);
  const int port = free_port();
  while (ranks.starting() || ranks.any()) {
    const bool starting = ranks.starting();
    if (starting && ranks.start_next(port, before)) {
      return std::nullopt;
    }
    const timespec tick{.tv_sec = 0, .tv_nsec = starting ? 0 : 100'000'000};
    const int signal = ::sigtimedwait(&waited, nullptr, &tick);
    if (passes_on && !passed_on && (signal == SIGTERM || signal == SIGUSR1)) {
      passed_on = true;
      ranks.signal_all(signal);
    } else if (signal > 0 && signal != SIGCHLD) {
      ranks.end(128 + signal);
      ranks.signal_all(passes_on ? SIGKILL : SIGTERM);
    }
    ranks.reap();
    ranks.press();
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return ranks.code();
}

} // namespace tieshard
