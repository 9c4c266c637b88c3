// tieshard/core/state/trainer_state.h
//
// trainer.json: where a run stands beside its tensors.
//
// Flow:   runtime/train -> [this] -> runtime/train, of a later job
// Source: docs/checkpoints.md, which states every member.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

struct TrainerState {
  static constexpr std::int64_t kVersion = 1;
  static constexpr std::string_view kFileName = "trainer.json";

  std::int64_t step = 0;                      ///< optimizer steps made, skipped ones among them
  std::int64_t samples = 0;                   ///< sequences that all ranks together have taken from the data
  std::int64_t tokens = 0;                    ///< that all ranks together have trained on
  std::vector<std::string> generators{};      ///< of each rank: its host generator's state, hexadecimal
  std::map<std::string, std::string> flags{}; ///< of the run, by name

  friend bool operator==(const TrainerState&, const TrainerState&) = default;
};

/// Indented, with a final newline. A flag's bytes that are not UTF-8 (a path can have any) become U+FFFD.
std::string to_json(const TrainerState& state);

/// @throws InputError manifest-malformed (also for a later version), and as parse_json
TrainerState parse_trainer_state(std::string_view text, const std::string& where);

} // namespace tieshard
