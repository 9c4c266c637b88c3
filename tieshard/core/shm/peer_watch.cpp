#include "tieshard/core/shm/peer_watch.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr int kOwn = -1;
constexpr int kEnded = -2;

/// A handle, or kEnded.
int open_handle(std::int64_t process) {
  const auto handle = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0));
  if (handle >= 0 || errno == ESRCH) {
    return handle >= 0 ? handle : kEnded;
  }
  throw PeerError({.code = Code::kIoFailed,
                   .what = "the kernel does not tell whether another rank runs",
                   .where = concat("pidfd_open of process ", process),
                   .why = std::strerror(errno),
                   .fix = "use TIESHARD_BACKEND=gloo, or Linux 5.3 or newer with pidfd_open allowed"});
}

} // namespace

void PeerWatch::require_support() {
  ::close(open_handle(::getpid()));
}

PeerWatch::PeerWatch(const std::vector<std::int64_t>& processes) : handles_(processes.size(), kOwn) {
  PeerWatch opened;
  opened.handles_.swap(handles_);
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    if (processes[rank] != ::getpid()) {
      opened.handles_[rank] = open_handle(processes[rank]);
    }
  }
  handles_.swap(opened.handles_);
}

PeerWatch::~PeerWatch() {
  for (const int handle : handles_) {
    if (handle >= 0) {
      ::close(handle);
    }
  }
}

bool PeerWatch::has_ended(std::uint32_t rank) const {
  if (rank >= handles_.size() || handles_[rank] == kOwn) {
    return false;
  }
  pollfd request{.fd = handles_[rank], .events = POLLIN, .revents = 0};
  return handles_[rank] == kEnded || ::poll(&request, 1, 0) == 1;
}

} // namespace tieshard
