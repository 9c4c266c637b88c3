// tieshard/cli/ladder.h
//
// `tieshard doctor --try`: a forward taken up a ladder, from a whole model on one rank to shards on several, until a
// rung fails or gives other numbers. What changed between it and the rung below is where the fault is.
//
// Flow: doctor -> [this] -> tieshard-runtime (`forward --stage`), core/checkpoint/safetensors_file.h

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tieshard/cli/json_output.h"
#include "tieshard/cli/model_flags.h"
#include "tieshard/cli/report.h"

namespace tieshard::cli {

struct LadderOptions {
  std::filesystem::path directory{};
  std::int64_t ranks = 1; ///< of the last rung, which is left out for 1
  OpenFlags open{};
  ShardFlags shard{};
  LoadFlags load{};
  std::filesystem::path runtime{}; ///< the program that computes; empty: tieshard-runtime beside this one
};

struct LadderRung {
  std::string name{};
  std::int64_t ranks = 1;
  bool passed = false;
  double difference = 0; ///< largest of any logit from the first rung's
  double largest = 0;    ///< absolute logit of the first rung
  std::string said{};    ///< what the program printed, where it failed
};

struct Ladder {
  std::vector<LadderRung> rungs; ///< as far as it was climbed: the last one has failed, or all have passed
  std::vector<Diagnostic> findings;

  bool passed() const {
    return findings.empty();
  }
};

/// Logits may differ by this part of the largest one: sums may be made in another order on another device.
inline constexpr double kLadderTolerance = 1e-5;

/// Runs 16 tokens through the model in float32 on each rung, each in a process of its own, so that a crash is a rung's
/// failure too. A finding rung-failed names the first that fails or differs.
/// @throws InputError file-not-found (no tieshard-runtime), what resolve_model throws; PeerError io-failed
Ladder climb(const LadderOptions& options);

void print_ladder(const Ladder& ladder, const Stream& out);
OrderedJson to_json(const Ladder& ladder);

} // namespace tieshard::cli
