// Invariant 6: loading peaks at 1.05 x this rank's shards + 128 MiB above the process before it.

#include <fstream>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

// On four ranks the bound is 190 MiB and the embedding has 234: who holds it whole on the way is found out.
constexpr TinyLlama kLarge{.vocab = 60'000, .hidden = 1024, .intermediate = 16, .layers = 1};
constexpr int kRanks = 4;
constexpr double kMiB = 1024.0 * 1024.0;

/// Peak resident set of this process so far, in bytes (proc(5), VmHWM).
double peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::stod(line.substr(6)) * 1024.0;
    }
  }
  ADD_FAILURE() << "the kernel does not say VmHWM";
  return 0;
}

TEST(LoadMemory, PeaksAtThisRanksShardsAndAFixedSum) {
  const auto directory = fresh_directory("model");
  on_ranks(1, [&](const DeviceMesh&) { // in a process of its own: what it needs must not count
    std::filesystem::rename(write_tiny_llama("written", kLarge), directory / "large");
  });
  on_ranks(kRanks, [&](const DeviceMesh& mesh) {
    PlannedLlama planned = plan_llama(directory / "large", mesh);
    const double shards = 4.0 * static_cast<double>(planned.plan.local_numel(mesh.rank()));
    const double before = peak_bytes();
    load_shards(*planned.model, planned.checkpoint, planned.plan, mesh, {.threads = 2});
    const double growth = peak_bytes() - before;
    EXPECT_LE(growth, 1.05 * shards + 128 * kMiB) << mesh.where() << ": shards " << shards / kMiB << " MiB";
    EXPECT_GE(growth, 0.9 * shards) << "the measurement does not see the load";
  });
  std::filesystem::remove_all(directory);
}

} // namespace
} // namespace tieshard::testing
