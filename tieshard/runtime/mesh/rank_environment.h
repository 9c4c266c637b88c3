// tieshard/runtime/mesh/rank_environment.h
//
// Which rank this process is, from the variables of whatever started it.
//
// Flow:   torchrun | srun | mpirun | local_launcher -> [this] -> process_group
// Source: torch.distributed.run (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Slurm's srun, Open MPI and
//         MPICH manuals.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tieshard {

enum class Launcher {
  kNone,     ///< started by hand: one rank
  kTorchrun, ///< RANK and WORLD_SIZE: torchrun and our own local launcher
  kMpirun,   ///< OMPI_COMM_WORLD_* or PMI_*
  kSlurm,    ///< SLURM_PROCID and SLURM_NTASKS
};

/// What the ranks exchange tensors over.
enum class BackendChoice {
  kAuto, ///< shared memory where all ranks of a group are on one host, else Gloo
  kShm,  ///< shared memory or an error
  kGloo,
};

/// What the ranks compute on.
enum class DeviceChoice {
  kCpu,
  kCuda, ///< each rank on the GPU of its LOCAL_RANK
};

/// Where this process stands among the ranks, and where they meet.
struct RankEnvironment {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  Launcher launcher = Launcher::kNone;
  bool agent_store = false;                     ///< torchrun's agent keeps the store: no rank has to host it
  BackendChoice backend = BackendChoice::kAuto; ///< TIESHARD_BACKEND: shm, gloo or auto
  DeviceChoice device = DeviceChoice::kCpu;     ///< TIESHARD_DEVICE: cpu or cuda
  std::string attempt = "0"; ///< torchrun's restart count: keys of an earlier attempt must not be seen
};

/// Looks a variable up; nothing when it is unset or empty.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string&)>;

/// Reads the launcher's variables. torchrun's come first, then MPI's, then Slurm's; without any: one rank.
/// MASTER_ADDR and MASTER_PORT hold for all launchers; without them MPI ranks of one host meet at 127.0.0.1:29500 and
/// Slurm's at the first host of SLURM_STEP_NODELIST, at a port made from SLURM_JOB_ID.
/// TIESHARD_BACKEND and TIESHARD_DEVICE hold for all of them.
/// @throws InputError bad-environment (a variable is missing, not a number, or contradicts another; WORLD_SIZE above 1
///         without any launcher's rank would be several runs that each think they are alone)
RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);

/// As above, from the process's own environment.
RankEnvironment read_rank_environment();

/// "cpu" or "cuda"; nothing for another text.
std::optional<DeviceChoice> device_choice(const std::string& text);

/// The first host of a Slurm node list: "node[03-05,9],gpu1" -> "node03".
std::string first_slurm_host(const std::string& node_list);

} // namespace tieshard
