// tests/core/state/example_manifest.h
//
// A manifest with one of everything.

#pragma once

#include <string>

#include "tieshard/core/state/manifest.h"

namespace tieshard {

inline Manifest example_manifest() {
  const OptimizerRecord adamw{.moments = {"exp_avg", "exp_avg_sq"}, .counters = {{"rounded_steps", 0}, {"step", 200}}};
  return {.id = "00112233445566778899aabbccddeeff",
          .step = 200,
          .mesh = {{"dp_replicate", 1}, {"dp_shard", 2}},
          .optimizer = "adamw",
          .parameters = {{.fqn = "embed.weight", .dtype = DType::kF32, .shape = {6, 4}, .dim = 1, .optimizer = adamw},
                         {.fqn = "norm.weight", .dtype = DType::kBF16, .shape = {4}, .dim = 0, .trainable = false},
                         {.fqn = "scale", .dtype = DType::kF32, .shape = {}, .dim = -1, .stored = false}},
          .ties = {{.canonical = "embed.weight", .alias = "head.weight", .evidence = "config-flag"}},
          .files = {{"shard-00001-model-00001-of-00002.safetensors", 120, std::string(32, 'a')},
                    {"trainer.json", 7, std::string(32, '0')}}};
}

} // namespace tieshard
