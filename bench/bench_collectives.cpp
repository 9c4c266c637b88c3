// bench/bench_collectives.cpp [RANKS]
//
// all_gather and reduce_scatter between processes of this host (2 unless told otherwise), over shared memory and over
// Gloo, with a copy of as many bytes by each process beside them. Output bytes (of reduce_scatter: input bytes, the
// same number) by the median time of rank 0. Exit status 1 when a goal is missed.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/local_launcher.h"

namespace tieshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGoal = 5.0; // times Gloo
constexpr int kRuns = 15;

/// Bytes by the median time of `work`, in GB/s. All ranks begin together.
double rate(const DeviceMesh& mesh, std::int64_t bytes, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int run = -2; run < kRuns; ++run) { // two to warm up
    barrier(mesh);
    const auto start = Clock::now();
    work();
    if (run >= 0) {
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  return static_cast<double>(bytes) / seconds[kRuns / 2] / 1e9;
}

struct Row {
  double shm, gloo, copy;
};

using Operation = std::function<void(const DeviceMesh&, at::Tensor&, at::Tensor&)>;

Row measure(const DeviceMesh& shm,
            const DeviceMesh& gloo,
            std::int64_t bytes,
            at::ScalarType dtype,
            const Operation& operation) {
  const std::int64_t element = static_cast<std::int64_t>(at::elementSize(dtype));
  const std::int64_t part = bytes / element / shm.size();
  at::Tensor whole = at::ones({part * shm.size()}, dtype);
  at::Tensor own = at::ones({part}, dtype);
  at::Tensor other = at::ones_like(whole);
  const auto moved = static_cast<std::int64_t>(whole.nbytes());
  return {
      .shm = rate(shm, moved, [&] { operation(shm, whole, own); }),
      .gloo = rate(gloo, moved, [&] { operation(gloo, whole, own); }),
      .copy = rate(shm, moved, [&] { std::memcpy(other.mutable_data_ptr(), whole.const_data_ptr(), whole.nbytes()); })};
}

DeviceMesh connect(BackendChoice backend, int port_offset) {
  RankEnvironment environment = read_rank_environment();
  environment.backend = backend;
  environment.master_port += port_offset;
  return DeviceMesh::connect(environment, std::chrono::minutes(1));
}

/// What one rank does. @returns whether every goal was met
bool run() {
  at::set_num_threads(1);
  const DeviceMesh shm = connect(BackendChoice::kShm, 0);
  const DeviceMesh gloo = connect(BackendChoice::kGloo, 1);
  const Operation gather = [](const DeviceMesh& mesh, at::Tensor& whole, at::Tensor& own) {
    all_gather_into_tensor(mesh, whole, own);
  };
  const Operation scatter = [](const DeviceMesh& mesh, at::Tensor& whole, at::Tensor& own) {
    reduce_scatter_tensor(mesh, own, whole);
  };
  bool met = true;
  for (const auto& [name, operation] : {std::pair("all_gather", gather), std::pair("reduce_scatter", scatter)}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const std::int64_t megabytes : {1, 4, 16, 64}) {
        const Row row = measure(shm, gloo, megabytes * 1'000'000, dtype, operation);
        met = met && row.shm >= kGoal * row.gloo;
        if (shm.rank() == 0) {
          std::printf("| %s %s | %d MB | %.1f | %.2f | %.1f | %.0f |\n",
                      name,
                      dtype == at::kFloat ? "fp32" : "bf16",
                      static_cast<int>(megabytes),
                      row.shm,
                      row.gloo,
                      row.copy,
                      row.shm / row.gloo);
          std::fflush(stdout);
        }
      }
    }
  }
  barrier(gloo);
  return met;
}

} // namespace
} // namespace tieshard

int main(int count, char** arguments) {
  try {
    const std::int64_t ranks = count > 1 ? std::atoll(arguments[1]) : 2;
    std::printf("| %d ranks, GB/s | size | shared memory | Gloo | copy | times Gloo |\n|---|---|---|---|---|---|\n",
                static_cast<int>(ranks));
    if (const auto status = tieshard::launch_local({.ranks = ranks})) {
      std::printf("goal: at least %.0f x Gloo everywhere: %s\n", tieshard::kGoal, *status == 0 ? "met" : "missed");
      return *status;
    }
    return tieshard::run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}
