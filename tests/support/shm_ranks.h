// tests/support/shm_ranks.h
//
// Runs a test's body on several ranks that share memory: as threads over one mapping, where ThreadSanitizer sees them,
// or as processes.

#pragma once

#include <chrono>
#include <functional>
#include <iostream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tieshard/core/shm/shm_group.h"

namespace tieshard::testing {

using ShmBody = std::function<void(ShmGroup&)>;

inline constexpr std::chrono::seconds kShmTimeout{60};

/// Runs `body` as rank `rank`; says what it throws. True if it threw nothing.
inline bool run_shm_rank(const std::shared_ptr<SharedMemory>& memory,
                         std::uint32_t rank,
                         const ShmBody& body,
                         std::chrono::milliseconds timeout = kShmTimeout) {
  try {
    ShmGroup group(memory, rank, timeout);
    group.meet();
    body(group);
    return true;
  } catch (const std::exception& error) {
    std::cerr << "rank " << rank << " threw: " << error.what() << std::endl;
    return false;
  }
}

inline void on_shm_threads(const ShmShape& shape, const ShmBody& body) {
  const auto memory = make_shm(shape);
  std::vector<std::thread> threads;
  std::vector<char> passed(shape.ranks);
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    threads.emplace_back([&, rank] { passed[rank] = run_shm_rank(memory, rank, body); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    EXPECT_TRUE(passed[rank]) << "rank " << rank << " of " << shape.ranks;
  }
}

/// Starts the ranks as processes; the caller waits for them. Each ends with status 0 if the body threw nothing and no
/// expectation failed in it.
inline std::vector<pid_t> start_shm_processes(const std::shared_ptr<SharedMemory>& memory,
                                              std::uint32_t ranks,
                                              const ShmBody& body,
                                              std::chrono::milliseconds timeout = kShmTimeout) {
  std::vector<pid_t> children;
  std::cout.flush();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool passed = run_shm_rank(memory, rank, body, timeout) && !::testing::Test::HasFailure();
      std::cout.flush();
      ::_exit(passed ? 0 : 1);
    }
    children.push_back(child);
  }
  return children;
}

/// The wait status of a child, which is killed when it takes over a minute.
inline int status_of(pid_t child) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return status;
}

inline void on_shm_processes(const ShmShape& shape, const ShmBody& body) {
  for (const pid_t child : start_shm_processes(make_shm(shape), shape.ranks, body)) {
    EXPECT_EQ(status_of(child), 0);
  }
}

} // namespace tieshard::testing
