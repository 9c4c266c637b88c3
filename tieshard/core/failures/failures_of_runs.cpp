#include "tieshard/core/failures/failure.h"
#include "tieshard/core/failures/log_ends.h"

namespace tieshard {
namespace {

std::optional<Match> shared_memory(const LogException& exception) {
  const bool shared = says(exception.message, {"tensors share memory"}) ||
                      says(exception.message, {"trying to be saved contained shared tensors"});
  return shared ? std::optional(Match{.parameter = least_parameter_in(exception.message)}) : std::nullopt;
}

std::optional<Match> disk_full(const LogException& exception) {
  return says(exception.message, {"No space left on device"}) ? std::optional(Match{}) : std::nullopt;
}

std::optional<Match> address_in_use(const LogException& exception) {
  const bool in_use = says(exception.message, {"EADDRINUSE"}) || says(exception.message, {"ddress already in use"});
  return in_use ? std::optional(Match{}) : std::nullopt;
}

std::optional<Match> killed(const LogException& exception) {
  return end_of(exception.message) == LogEnd::kKilled ? std::optional(Match{}) : std::nullopt;
}

std::optional<Match> peer_lost(const LogException& exception) {
  const bool lost =
      exception.type == "DistBackendError" || exception.type == "DistNetworkError" ||
      exception.type == "DistStoreError" || exception.type == "ChildFailedError" ||
      says(exception.message, {"Connection closed by peer"}) || says(exception.message, {"Connection reset by peer"}) ||
      says(exception.message, {"Timed out waiting", "operation"}) || end_of(exception.message) == LogEnd::kTimedOut ||
      says(exception.message, {"collective operation timeout"});
  return lost ? std::optional(Match{}) : std::nullopt;
}

} // namespace

const std::vector<Failure>& failures_of_runs() {
  static const std::vector<Failure> failures = {
      {.id = "shared-tensors-saved",
       .phase = Phase::kSave,
       .what = "a tied weight is saved under both of its names",
       .cause = "safetensors refuses tensors that share memory, and a state dict lists a tied weight once a name",
       .steps = {{CheckBy::kLog, "the message lists the names that share memory"},
                 {CheckBy::kTied, "the names are one weight"}},
       .fix_there = "save with model.save_pretrained, or safetensors.torch.save_model, which keep one of the names; "
                    "drop the alias from the dict otherwise",
       .fix_here = "an export writes each weight once, under its canonical name",
       .match = shared_memory},
      {.id = "disk-full",
       .phase = Phase::kSave,
       .what = "there was no room on the disk",
       .cause = "a checkpoint or an export is larger than what is free; what is there now may be half of one",
       .steps = {{CheckBy::kLog, "the kernel says that no space is left"},
                 {CheckBy::kYou, "compare the sizes of the last checkpoint's files with those of the one before"}},
       .fix_there = "make room, remove the half-written directory, and resume from the checkpoint before it",
       .fix_here =
           "a checkpoint appears under its name when all of it is durable, or not at all; --keep bounds how many stay",
       .match = disk_full},
      {.id = "address-in-use",
       .phase = Phase::kMaterialize,
       .what = "the port at which the ranks meet is taken",
       .cause = "another run on this machine, or a process that is left of the last one, listens at the same port",
       .steps = {{CheckBy::kLog, "the message says that the address is in use, and which port"},
                 {CheckBy::kYou, "ss -ltnp | grep PORT names the process"}},
       .fix_there = "end the process that is left, or give another port (torchrun --master-port, accelerate "
                    "--main_process_port, MASTER_PORT); 0 lets torchrun choose",
       .fix_here = "on one machine tieshard takes a port that is free",
       .match = address_in_use},
      {.id = "process-killed",
       .phase = Phase::kStep,
       .what = "a rank's process was killed from outside (SIGKILL)",
       .cause = "the kernel or the job's control group ends a process when the machine's memory, not the GPU's, is at "
                "its end: mostly while every rank reads the whole model; a launcher also kills ranks that do not end",
       .steps = {{CheckBy::kLog, "the log says that a process was killed"},
                 {CheckBy::kYou, "dmesg | grep -i oom, sacct -j JOB -o MaxRSS or the pod's OOMKilled say who did it"},
                 {CheckBy::kYou, "tieshard plan DIR --ranks N says what a load takes of the machine's memory"}},
       .fix_there =
           "read on rank 0 alone (cpu_ram_efficient_loading) or from slices, fewer workers of the data loader, "
           "no offload to the CPU, or ask the scheduler for more memory",
       .fix_here = "a load holds this rank's slices and a read buffer; --host-ram-per-rank refuses one that would not "
                   "fit before it begins",
       .match = killed},
      {.id = "peer-lost",
       .phase = Phase::kStep,
       .what = "another rank was gone or came too late",
       .cause = "this rank only followed: the cause is the first exception of another rank, a rank that was killed, or "
                "one that takes another path",
       .steps = {{CheckBy::kLog, "a collective ended because of another rank"},
                 {CheckBy::kYou, "look at the log of the rank that ended first, and at what its machine said then"},
                 {CheckBy::kYou,
                  "a rank that takes another path (an empty batch, a skipped layer) leaves the others waiting"}},
       .fix_there = "mend the first rank's failure; py-spy dump shows where a rank that does not end waits",
       .fix_here = "an error on one rank reaches all of them with its text and its rank, and every wait ends",
       .match = peer_lost}};
  return failures;
}

} // namespace tieshard
