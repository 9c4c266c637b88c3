// tieshard/core/plan/weight_source.h
//
// Where the elements of each parameter come from, and in which encoding. Asked once; the same for every rank.
//
// Flow:   checkpoint, ties, shard_plan -> [this] -> read_plan
// Source: MXFP4 as in openai/gpt-oss (`*_blocks`, `*_scales`); FP8 as transformers' fp8 and compressed-tensors store it
//         (`*.weight_scale_inv`, `*.weight_scale`).

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/plan/init_rule.h"
#include "tieshard/core/plan/shard_plan.h"

namespace tieshard {

/// How a file holds the elements of a parameter.
enum class Encoding {
  kPlain,      ///< row-major, in the parameter's shape, in a wide float
  kTransposed, ///< a wide float with the last two dimensions swapped
  kMxfp4,      ///< U8 blocks [..., out, in/32, 16] and U8 scales [..., out, in/32]; the parameter is [..., in, out]
  kFp8,        ///< F8 values in the parameter's shape; scales [], [1], [out, 1] or one for each block of a matrix
};

/// Stable spelling for output: "plain", "transposed", "mxfp4", "fp8".
std::string_view id(Encoding encoding);

/// How many rows and columns of a matrix share one scale; a scale tensor has one element for each started block.
struct ScaleBlock {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};

/// The origin of one canonical parameter: stored, or initialised because the caller asked for it.
struct WeightSource {
  Encoding encoding = Encoding::kPlain;
  const StoredTensor* values = nullptr; ///< of the checkpoint; null when initialised
  const StoredTensor* scales = nullptr; ///< of kMxfp4 and kFp8 (null for an FP8 weight that is stored unscaled)
  ScaleBlock scale_block{};             ///< of kFp8 with scales
  InitRule init{};                      ///< used when `values` is null
};

struct WeightSourceOptions {
  std::vector<NamedInit> inits{}; ///< `--init NAME=RULE`: parameters that no file has to hold
};

/// Points into the checkpoint that it was made from, which has to live as long.
struct WeightSources {
  std::vector<WeightSource> of_parameter; ///< as ShardPlan::parameters()
  std::vector<std::string> unused;        ///< stored tensors that are neither value nor scale nor a tie's other name
  std::vector<Diagnostic> findings;       ///< scale-block, unused-tensor, known-buffer, initialised; the same on every
                                          ///< rank
};

/// Values are sought under the canonical name, then under each alias: plain (or transposed, where the family says so),
/// then as MXFP4 blocks. An F8 tensor is scaled when it has a scale and config.json a quantization_config; without both
/// it is a float dtype as any other.
/// @throws InputError, the first of the kinds that there are, listing all its offenders: dtype-not-loadable (naming the
/// quant_method of config.json),
///         missing-parameter (`fix` names --tie where a stored tensor of the same shape could be meant), scale-missing
///         (blocks, or F8 values that the config calls quantised, without scales), stray-scale (a scale that nothing
///         would apply), scale-block (grids of scales that fit several blocks, config.json being silent),
///         shape-mismatch (stored and expected shape), unknown-parameter (an init of no parameter), bad-flag (an init
///         of a parameter that a file holds), config-value
WeightSources find_weight_sources(const Checkpoint& checkpoint,
                                  const ShardPlan& plan,
                                  const WeightSourceOptions& options = {});

/// Every kind of what find_weight_sources refuses, in the order in which it would; empty where it refuses nothing. A
/// later kind may be what an earlier one causes.
/// @throws InputError for an init that cannot be: unknown-parameter, bad-flag, config-value
std::vector<Diagnostic> find_weight_offences(const Checkpoint& checkpoint,
                                             const ShardPlan& plan,
                                             const WeightSourceOptions& options = {});

} // namespace tieshard
