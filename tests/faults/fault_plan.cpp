#include "tests/faults/fault_plan.h"

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tieshard::faults {
namespace {

[[noreturn]] void refuse(const char* variable) {
  std::fprintf(stderr, "fault injection: %s is missing or has a value that cannot be used\n", variable);
  ::_exit(99);
}

std::string text(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

std::uint64_t number(const char* variable, std::uint64_t fallback) {
  const std::string value = text(variable);
  if (value.empty()) {
    return fallback;
  }
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(value.c_str(), &end, 10);
  if (*end != '\0') {
    refuse(variable);
  }
  return number;
}

std::atomic<std::uint64_t>* shared_counter(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* const memory = descriptor < 0
                           ? MAP_FAILED
                           : ::mmap(nullptr, sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    refuse("TIESHARD_FAULT_COUNTER");
  }
  ::close(descriptor);
  return static_cast<std::atomic<std::uint64_t>*>(memory);
}

const char* name_of(Call call) {
  constexpr std::array kNames{"write", "allocate", "sync", "rename", "exchange", "make", "remove"};
  return kNames[static_cast<std::size_t>(call)];
}

bool lists(const std::string& calls, const char* name) {
  return ("," + calls + ",").find("," + std::string(name) + ",") != std::string::npos;
}

} // namespace

const FaultPlan& FaultPlan::get() {
  static const FaultPlan plan;
  return plan;
}

FaultPlan::FaultPlan() {
  const std::string fault = text("TIESHARD_FAULT");
  if (fault.empty()) {
    return;
  }
  if (fault == "enospc" || fault == "eio" || fault == "einval") {
    error_ = fault == "eio" ? EIO : fault == "einval" ? EINVAL : ENOSPC;
  } else if (fault == "kill-all") {
    whole_group_ = true;
  } else if (fault == "count") {
    count_only_ = true;
  } else if (fault != "kill") {
    refuse("TIESHARD_FAULT");
  }
  under_ = text("TIESHARD_FAULT_UNDER");
  if (!under_.starts_with("/")) {
    refuse("TIESHARD_FAULT_UNDER");
  }
  calls_ = text("TIESHARD_FAULT_CALLS");
  first_ = number("TIESHARD_FAULT_AT", 0);
  if (first_ == 0 && !count_only_) {
    refuse("TIESHARD_FAULT_AT");
  }
  const std::uint64_t length = number("TIESHARD_FAULT_FOR", 1);
  last_ = length == 0 ? UINT64_MAX : first_ + length - 1;
  counter_ = shared_counter(text("TIESHARD_FAULT_COUNTER"));
  active_ = true;
}

Outcome FaultPlan::next(Call call, std::string_view path) const {
  if (!active_ || (!calls_.empty() && !lists(calls_, name_of(call)))) {
    return Outcome::kPass;
  }
  std::string whole(path);
  if (!whole.starts_with("/")) {
    std::array<char, PATH_MAX> directory{};
    whole = ::getcwd(directory.data(), directory.size()) == nullptr ? whole : directory.data() + ("/" + whole);
  }
  if (!whole.starts_with(under_)) {
    return Outcome::kPass;
  }
  const std::uint64_t mine = counter_->fetch_add(1) + 1;
  if (count_only_ || mine < first_ || mine > last_) {
    return Outcome::kPass;
  }
  return error_ == 0 ? Outcome::kDie : Outcome::kFail;
}

Outcome FaultPlan::next(Call call, int descriptor) const {
  if (!active_) {
    return Outcome::kPass;
  }
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return length <= 0 ? Outcome::kPass : next(call, std::string_view(path.data(), static_cast<std::size_t>(length)));
}

void FaultPlan::die() const {
  ::kill(whole_group_ ? 0 : ::getpid(), SIGKILL);
  for (;;) {
    ::pause();
  }
}

} // namespace tieshard::faults
