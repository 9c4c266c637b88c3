#include "tieshard/core/failures/failure.h"

namespace tieshard {
namespace {

std::optional<Match> shared_memory(const LogException& exception) {
  return says(exception.message, {"tensors share memory"})
             ? std::optional(Match{.parameter = least_parameter_in(exception.message)})
             : std::nullopt;
}

std::optional<Match> disk_full(const LogException& exception) {
  return says(exception.message, {"No space left on device"}) ? std::optional(Match{}) : std::nullopt;
}

std::optional<Match> peer_lost(const LogException& exception) {
  const bool lost = exception.type == "DistBackendError" || exception.type == "DistNetworkError" ||
                    exception.type == "DistStoreError" || exception.type == "ChildFailedError" ||
                    says(exception.message, {"Connection closed by peer"}) ||
                    says(exception.message, {"Connection reset by peer"}) ||
                    says(exception.message, {"Timed out waiting", "operation"}) ||
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
      {.id = "peer-lost",
       .phase = Phase::kStep,
       .what = "another rank was gone or came too late",
       .cause = "this rank only followed: the cause is the first exception of another rank, or a rank that was killed "
                "without a word (memory)",
       .steps = {{CheckBy::kLog, "a collective ended because of another rank"},
                 {CheckBy::kYou, "look at the log of the rank that ended first, and for 'Killed' or exit code -9"},
                 {CheckBy::kYou,
                  "a rank that takes another path (an empty batch, a skipped layer) leaves the others waiting"}},
       .fix_there = "mend the first rank's failure; where a rank was killed, give it more memory",
       .fix_here = "an error on one rank reaches all of them with its text and its rank, and every wait ends",
       .match = peer_lost}};
  return failures;
}

} // namespace tieshard
