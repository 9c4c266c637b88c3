#include "tieshard/runtime/mesh/rank_environment.h"

#include <charconv>
#include <cstdlib>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

/// Names of one launcher's variables.
struct Names {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kLaunchers[] = {
    {Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::kMpirun,
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kMpirun, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Launcher::kSlurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

[[noreturn]] void refuse(std::string where, std::string why, std::string fix) {
  throw InputError({.code = Code::kBadEnvironment,
                    .what = "launcher variables are missing or contradict each other",
                    .where = std::move(where),
                    .why = std::move(why),
                    .fix = std::move(fix)});
}

std::int64_t number(const std::string& name, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    refuse(name, concat("expected a non-negative integer, got \"", text, "\""), "let the launcher set it, or unset it");
  }
  return value;
}

std::int64_t number_or(const EnvironmentLookup& lookup, const std::string& name, std::int64_t fallback) {
  const auto text = lookup(name);
  return text ? number(name, *text) : fallback;
}

int port_number(const std::string& text) {
  const std::int64_t port = number("MASTER_PORT", text);
  if (port < 1 || port > 65535) {
    refuse("MASTER_PORT", concat("expected 1 to 65535, got ", port), "choose a free port");
  }
  return static_cast<int>(port);
}

/// No launcher's rank: right for a process started by hand, wrong for one of several whose rank got lost.
void require_no_count(const EnvironmentLookup& lookup) {
  if (const std::int64_t size = number_or(lookup, "WORLD_SIZE", 1); size > 1) {
    refuse("RANK",
           concat("WORLD_SIZE is set to ", size, " but RANK is not"),
           "start through torchrun, srun, mpirun or --ranks N, or unset WORLD_SIZE");
  }
}

BackendChoice backend_choice(const EnvironmentLookup& lookup) {
  const std::string text = lookup("TIESHARD_BACKEND").value_or("auto");
  if (text == "shm") {
    return BackendChoice::kShm;
  }
  if (text == "gloo") {
    return BackendChoice::kGloo;
  }
  if (text != "auto") {
    refuse("TIESHARD_BACKEND", concat("expected shm, gloo or auto, got \"", text, "\""), "choose one, or unset it");
  }
  return BackendChoice::kAuto;
}

DeviceChoice asked_device(const EnvironmentLookup& lookup) {
  const std::string text = lookup("TIESHARD_DEVICE").value_or("cpu");
  const std::optional<DeviceChoice> choice = device_choice(text);
  if (!choice) {
    refuse("TIESHARD_DEVICE", concat("expected cpu or cuda, got \"", text, "\""), "choose one, or unset it");
  }
  return *choice;
}

void set_meeting_point(RankEnvironment& environment, const Names& names, const EnvironmentLookup& lookup) {
  const auto address = lookup("MASTER_ADDR");
  const auto port = lookup("MASTER_PORT");
  if (environment.launcher == Launcher::kTorchrun && environment.world_size > 1 && (!address || !port)) {
    refuse(
        address ? "MASTER_PORT" : "MASTER_ADDR",
        concat(
            "RANK=", environment.rank, " of WORLD_SIZE=", environment.world_size, " needs MASTER_ADDR and MASTER_PORT"),
        "start through torchrun or --ranks N, or set MASTER_ADDR and MASTER_PORT to rank 0's host and a free port");
  }
  if (environment.launcher == Launcher::kSlurm) {
    const auto nodes = lookup("SLURM_STEP_NODELIST") ? lookup("SLURM_STEP_NODELIST") : lookup("SLURM_JOB_NODELIST");
    environment.master_addr = nodes ? first_slurm_host(*nodes) : "127.0.0.1";
    environment.master_port = static_cast<int>(20000 + number_or(lookup, "SLURM_JOB_ID", 0) % 20000);
  }
  if (environment.launcher == Launcher::kMpirun && !address && environment.world_size > 1 &&
      number_or(lookup, names.local_size, environment.world_size) != environment.world_size) {
    refuse("MASTER_ADDR",
           "the ranks are on several hosts and MPI's variables do not say which is rank 0's",
           "mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=29500 ...");
  }
  if (address) {
    environment.master_addr = *address;
  }
  if (port) {
    environment.master_port = port_number(*port);
  }
}

} // namespace

std::optional<DeviceChoice> device_choice(const std::string& text) {
  if (text == "cuda") {
    return DeviceChoice::kCuda;
  }
  return text == "cpu" ? std::optional(DeviceChoice::kCpu) : std::nullopt;
}

std::string first_slurm_host(const std::string& node_list) {
  const std::size_t bracket = node_list.find('[');
  const std::size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) {
    return node_list.substr(0, comma);
  }
  const std::size_t close = node_list.find(']', bracket);
  if (close == std::string::npos) {
    refuse("SLURM_STEP_NODELIST", concat("expected a node list, got \"", node_list, "\""), "set MASTER_ADDR by hand");
  }
  const std::size_t end = node_list.find_first_of(",-]", bracket);
  const std::string number = node_list.substr(bracket + 1, end - bracket - 1);
  return node_list.substr(0, bracket) + number + first_slurm_host(node_list.substr(close + 1)); // more may follow
}

RankEnvironment read_rank_environment(const EnvironmentLookup& lookup) {
  RankEnvironment environment;
  for (const Names& names : kLaunchers) {
    const auto rank = lookup(names.rank);
    if (!rank) {
      continue;
    }
    const auto size = lookup(names.size);
    if (!size && names.launcher == Launcher::kSlurm) {
      continue; // the batch script of sbatch itself: no srun has started it
    }
    if (!size) {
      refuse(names.size,
             concat(names.rank, " is set to ", *rank, " but ", names.size, " is not"),
             concat("set ", names.size, " to the number of ranks, or unset ", names.rank));
    }
    environment.launcher = names.launcher;
    environment.rank = number(names.rank, *rank);
    environment.world_size = number(names.size, *size);
    environment.local_rank = number_or(lookup, names.local_rank, environment.rank);
    if (environment.world_size < 1) {
      refuse(names.size, "expected at least 1, got 0", concat("set ", names.size, " to the number of ranks"));
    }
    if (environment.rank >= environment.world_size) {
      refuse(names.rank,
             concat("expected 0 to ", environment.world_size - 1, ", got ", environment.rank),
             concat("ranks count from 0 and ", names.size, " is how many there are"));
    }
    set_meeting_point(environment, names, lookup);
    break;
  }
  if (environment.launcher == Launcher::kNone) {
    require_no_count(lookup);
  }
  environment.backend = backend_choice(lookup);
  environment.device = asked_device(lookup);
  environment.agent_store = lookup("TORCHELASTIC_USE_AGENT_STORE") == "True";
  environment.attempt = lookup("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return environment;
}

RankEnvironment read_rank_environment() {
  return read_rank_environment([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
  });
}

} // namespace tieshard
