// tieshard/runtime/train/stop_signal.h
//
// Signals that ask a run to save and end, as a scheduler sends them before it takes the machine away.
//
// Flow:   the kernel -> [this] -> trainer
// Source: Slurm's sbatch --signal (SIGUSR1), and SIGTERM, which precedes SIGKILL everywhere.

#pragma once

namespace tieshard {

/// While one lives, SIGTERM and SIGUSR1 do not end this process; they are taken note of. A signal that the process was
/// told to ignore stays ignored. One inside the life of another changes nothing: a program makes one before it starts
/// ranks, so that none of them dies of a signal that comes early. Not for several threads at once.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// The first signal that came; 0: none.
  static int received() noexcept;
};

} // namespace tieshard
