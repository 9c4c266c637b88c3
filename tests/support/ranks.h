// tests/support/ranks.h
//
// Runs a test's body on several ranks: real processes, connected as DeviceMesh does it on one host.

#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard::testing {

inline int loopback_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

/// In the child: runs the body; the exit status says whether anything failed.
[[noreturn]] inline void be_test_rank(
    int rank, int count, int port, const std::function<void(const DeviceMesh&)>& body, BackendChoice backend) {
  at::set_num_threads(1);
  bool failed = false;
  try {
    RankEnvironment environment;
    environment.rank = rank;
    environment.world_size = count;
    environment.local_rank = rank;
    environment.master_port = port;
    environment.launcher = Launcher::kTorchrun;
    environment.backend = backend;
    const DeviceMesh mesh = DeviceMesh::connect(environment, std::chrono::seconds(60));
    try {
      body(mesh);
      failed = ::testing::Test::HasFailure();
    } catch (const std::exception& error) {
      failed = true;
      std::cerr << "rank " << rank << " of " << count << " threw: " << error.what() << std::endl;
      std::this_thread::sleep_for(std::chrono::milliseconds(200)); // print before the others see the connection close
    }
  } catch (const std::exception& error) {
    failed = true;
    std::cerr << "rank " << rank << " of " << count << ": " << error.what() << std::endl;
  }
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(failed ? 1 : 0);
}

/// Runs `body` on `count` ranks and waits for them; the test fails when one of them fails, dies or takes over two
/// minutes. The calling process must not have computed with torch before: its threads do not survive a fork.
inline void on_ranks(int count,
                     const std::function<void(const DeviceMesh&)>& body,
                     BackendChoice backend = BackendChoice::kAuto) {
  const int port = loopback_port();
  std::cout.flush();
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      be_test_rank(rank, count, port, body, backend);
    }
    children.push_back(child);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    while (::waitpid(children[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        ::kill(children[rank], SIGKILL);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " of " << count << " ended with wait status " << status;
  }
}

/// Runs `body` on replicas x shards ranks.
inline void on_grid(MeshGrid grid, const std::function<void(const DeviceMesh&)>& body) {
  const int port = loopback_port();
  on_ranks(static_cast<int>(grid.replicas * grid.shards), [&](const DeviceMesh& ranks) {
    RankEnvironment environment;
    environment.rank = ranks.rank();
    environment.world_size = ranks.size();
    environment.master_port = port;
    environment.launcher = Launcher::kTorchrun;
    body(DeviceMesh::connect(environment, std::chrono::seconds(60), grid));
  });
}

} // namespace tieshard::testing
