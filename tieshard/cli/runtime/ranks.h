// tieshard/cli/runtime/ranks.h
//
// What train and forward share: be one of the ranks, or start them.
//
// Flow: train_verb, forward_verb -> [this] -> mesh/local_launcher.h, mesh/device_mesh.h

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"
#include "tieshard/runtime/load/shard_loader.h"
#include "tieshard/runtime/mesh/device_mesh.h"
#include "tieshard/runtime/mesh/local_launcher.h"
#include "tieshard/runtime/train/token_data.h"

namespace CLI {
class App;
}

namespace tieshard::cli {

/// Flags that every multi-rank verb has.
struct RankFlags {
  std::int64_t ranks = 1;
  std::int64_t replicas = 1; ///< copies of the model; a divisor of the ranks
  std::int64_t timeout_s = 600;
  int threads = 1;
  std::string device{}; ///< "cpu" or "cuda"; empty: what TIESHARD_DEVICE says
};

void add_rank_flags(CLI::App& verb, RankFlags& flags);

/// How many ranks the run has: those that the launcher says, else --ranks. @throws InputError bad-environment
std::int64_t rank_count(const RankFlags& flags);

/// Runs `work` on every rank. Under torchrun, srun or mpirun this process is one of them; otherwise, with --ranks above
/// 1, it forks them and waits.
///
/// A rank that fails prints its own Diagnostic at once, while its connections are still open; a rank that only followed
/// says so in one line, a second later: so the cause stands first.
/// @returns the exit status of the rank, or of the one that failed first
int run_ranks(const RankFlags& flags,
              const Console& console,
              const std::function<void(const DeviceMesh&)>& work,
              OnStopSignal on_stop = OnStopSignal::kEnd);

/// The flags of a load as the runtime takes them.
LoadOptions load_options(const LoadFlags& flags, int threads);

/// "uint16", "uint32" or "auto".
TokenDtype token_dtype_flag(const std::string& text);

/// Adds --data-dtype.
void add_token_dtype_flag(CLI::App& verb, std::string& text);

} // namespace tieshard::cli
