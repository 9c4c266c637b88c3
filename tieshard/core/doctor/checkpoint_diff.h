// tieshard/core/doctor/checkpoint_diff.h
//
// In what two checkpoints differ: names, shapes, dtypes, and values element by element.
//
// Flow: cli/diff, cli/check -> [this] -> core/ties/resolved_model.h, tensor_diff.h

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/core/doctor/tensor_diff.h"
#include "tieshard/core/ties/resolved_model.h"

namespace tieshard {

struct DiffOptions {
  bool values = true;                   ///< compare them too; false: headers alone
  int threads = 1;                      ///< that read
  std::uint64_t buffer_bytes = 8 << 20; ///< of each thread
};

/// One name that is not the same on both sides.
struct NameDifference {
  std::string name{};
  std::string first{};                        ///< "F32 [4, 8]", or "absent"
  std::string second{};                       ///< of the other checkpoint
  bool same_values = false;                   ///< dtypes differ and no value does
  bool compared = false;                      ///< the values too
  std::optional<TensorDifference> elements{}; ///< where shapes are equal and values are not
};

struct CheckpointDiff {
  std::size_t tensors = 0; ///< names of either side
  std::size_t equal = 0;   ///< of them the same on both
  std::uint64_t bytes = 0; ///< that were compared, of the first checkpoint
  bool values = true;      ///< they were asked for
  std::vector<NameDifference> differences{};
  std::vector<std::string> config{}; ///< keys of config.json that make it another model; where both sides have one
  std::vector<std::string>
      tied{}; ///< names that one side stores and the other has as another name's weight: compared with that

  bool same() const {
    return differences.empty() && config.empty();
  }
};

/// Compares the tensors of `first` and `second` under the model's names. How they lie in files, and in which order, is
/// no difference; neither is a weight that one side stores under each of its tied names.
/// @throws PeerError io-failed
CheckpointDiff compare_checkpoints(const ResolvedModel& first,
                                   const ResolvedModel& second,
                                   const DiffOptions& options = {});

} // namespace tieshard
