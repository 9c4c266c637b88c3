#include "tieshard/cli/rank_processes.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tieshard/cli/report.h"

namespace tieshard::cli {
namespace {

[[noreturn]] void throw_start(const std::string& operation) {
  throw PeerError({.code = Code::kIoFailed,
                   .what = "a rank's process could not be started",
                   .where = operation,
                   .why = std::strerror(errno),
                   .fix = "check the process and file limits of this user (ulimit -a)"});
}

OrderedJson failure_document(const Diagnostic& diagnostic, int status) {
  OrderedJson part = to_json(diagnostic);
  part["status"] = status;
  return {{"failure", part}};
}

/// What `work` gives, or what it throws, as one document.
OrderedJson answer_of(const std::function<OrderedJson(std::int64_t)>& work, std::int64_t rank) {
  try {
    return {{"answer", work(rank)}};
  } catch (const Error& error) {
    return failure_document(error.diagnostic(), exit_status(error));
  } catch (const std::bad_alloc&) {
    return failure_document({.code = Code::kOutOfMemory,
                             .what = "memory could not be allocated",
                             .why = "an allocation on the host was refused",
                             .fix = "use more ranks, or a machine with more memory"},
                            kExitPeer);
  } catch (const std::exception& error) {
    return failure_document({.code = Code::kBug,
                             .what = "tieshard met an exception that it does not know",
                             .why = error.what(),
                             .fix = "please report this with the command line that led here"},
                            kExitBug);
  }
}

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno != EINTR) {
      return; // the reader is gone, and with it whoever would want to know
    }
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
}

struct Child {
  std::int64_t rank = 0;
  pid_t process = -1;
  int pipe = -1;        ///< read end; -1 once it has ended
  std::string text{};   ///< what came through it
  int wait_status = -1; ///< of waitpid
};

class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  /// Ends what still runs: after an exception nobody waits for it.
  ~Children() {
    for (Child& child : children_) {
      if (child.pipe >= 0) {
        ::close(child.pipe);
        ::kill(child.process, SIGKILL);
        wait_for(child);
      }
    }
  }

  void start(std::int64_t rank, const std::function<OrderedJson(std::int64_t)>& work) {
    int ends[2];
    if (::pipe(ends) != 0) {
      throw_start(concat("pipe of rank ", rank));
    }
    const pid_t parent = ::getpid();
    const pid_t process = ::fork();
    if (process < 0) {
      const int reason = errno;
      ::close(ends[0]);
      ::close(ends[1]);
      errno = reason;
      throw_start(concat("fork of rank ", rank));
    }
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) { // else the parent died before prctl was asked
        write_all(ends[1], answer_of(work, rank).dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
      }
      ::_exit(0); // without the parent's exit handlers and unwritten output
    }
    ::close(ends[1]);
    children_.push_back({.rank = rank, .process = process, .pipe = ends[0]});
  }

  /// Reads every pipe to its end, then waits for the processes.
  void collect() {
    while (std::ranges::any_of(children_, [](const Child& child) { return child.pipe >= 0; })) {
      std::vector<pollfd> waited;
      std::vector<Child*> open;
      for (Child& child : children_) {
        if (child.pipe >= 0) {
          waited.push_back({.fd = child.pipe, .events = POLLIN, .revents = 0});
          open.push_back(&child);
        }
      }
      if (::poll(waited.data(), waited.size(), -1) < 0) {
        continue; // a signal
      }
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (waited[i].revents != 0) {
          read_some(*open[i]);
        }
      }
    }
  }

  const std::vector<Child>& all() const {
    return children_;
  }

 private:
  static void wait_for(Child& child) {
    while (::waitpid(child.process, &child.wait_status, 0) < 0 && errno == EINTR) {
    }
  }

  static void read_some(Child& child) {
    char buffer[65536];
    const ssize_t count = ::read(child.pipe, buffer, sizeof(buffer));
    if (count > 0) {
      child.text.append(buffer, static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      ::close(child.pipe);
      child.pipe = -1;
      wait_for(child);
    }
  }

  std::vector<Child> children_;
};

Diagnostic death_of(const Child& child) {
  const bool signalled = WIFSIGNALED(child.wait_status);
  const int signal = signalled ? WTERMSIG(child.wait_status) : 0;
  return {.code = Code::kRankDied,
          .what = "a rank ended without a word",
          .where = concat("process ", child.process),
          .why = signalled ? concat("it was ended by signal ", signal, " (", ::strsignal(signal), ")")
                           : concat("it ended with status ", WEXITSTATUS(child.wait_status)),
          .fix = signal == SIGKILL
                     ? "signal 9 without a sender is mostly the kernel's out-of-memory killer: see its log"
                     : "run it again with --rank, under a debugger"};
}

RankFailure failure_of(const Child& child, const OrderedJson& document) {
  if (!document.contains("failure")) {
    return {.ranks = {child.rank}, .diagnostic = death_of(child), .status = kExitPeer};
  }
  const OrderedJson& part = document["failure"];
  return {.ranks = {child.rank}, .diagnostic = diagnostic_from(part), .status = part["status"]};
}

/// `where` without the "rank R of N" that it may begin with: the ranks are said together.
std::string without_rank(const std::string& where) {
  const std::size_t end = where.find_first_not_of("0123456789", where.find(" of ") + 4);
  if (!where.starts_with("rank ") || where.find(" of ") == std::string::npos) {
    return where;
  }
  return end == std::string::npos ? "" : where.substr(std::min(where.size(), end + 2));
}

/// Ranks mostly fail for one reason: it is said once, with the figures of the first.
void add_failure(RankFailure failure, std::vector<RankFailure>& failures) {
  failure.diagnostic.where = without_rank(failure.diagnostic.where);
  const auto same = std::ranges::find_if(failures, [&](const RankFailure& known) {
    const bool died = known.diagnostic.code == Code::kRankDied; // where names the process, why the signal
    return known.diagnostic.code == failure.diagnostic.code &&
           (died ? known.diagnostic.why == failure.diagnostic.why : known.diagnostic.where == failure.diagnostic.where);
  });
  if (same == failures.end()) {
    failures.push_back(std::move(failure));
  } else {
    same->ranks.push_back(failure.ranks.front());
  }
}

} // namespace

RankAnswers run_rank_processes(const std::vector<std::int64_t>& ranks,
                               const std::function<OrderedJson(std::int64_t)>& work) {
  Children children;
  for (const std::int64_t rank : ranks) {
    children.start(rank, work);
  }
  children.collect();
  RankAnswers result;
  for (const Child& child : children.all()) {
    OrderedJson document = OrderedJson::parse(child.text, nullptr, false); // discarded when it was cut short
    const bool whole = document.is_object() && WIFEXITED(child.wait_status);
    if (whole && document.contains("answer")) {
      result.answers.push_back(std::move(document["answer"]));
    } else {
      add_failure(failure_of(child, whole ? document : OrderedJson::object()), result.failures);
    }
  }
  return result;
}

} // namespace tieshard::cli
