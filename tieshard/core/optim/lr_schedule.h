// tieshard/core/optim/lr_schedule.h
//
// The learning rate of a step as a factor of the one that a group was given.
//
// Flow:   cli flags -> [this] -> runtime/train
// Source: transformers' get_*_schedule functions, whose factors these are to the last bit but one; WSD: Hu et al.,
//         "MiniCPM".

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tieshard {

enum class LrScheduleKind { kConstant, kLinear, kCosine, kWsd, kInverseSqrt };

/// How a decay goes from 1 to the minimum: x is the part of it that is done. 1 - x; (1 + cos(pi x)) / 2; 1 - sqrt(x).
enum class DecayShape { kLinear, kCosine, kOneMinusSqrt };

/// The names of the flags, in the order of the enumerators.
const std::vector<std::string>& lr_schedule_names();
const std::vector<std::string>& decay_shape_names();

/// @throws InternalError bug for another name
LrScheduleKind lr_schedule_from_name(std::string_view name);
DecayShape decay_shape_from_name(std::string_view name);

/// Lengths are in steps or in tokens, whichever `factor` is asked with.
struct LrScheduleOptions {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  std::int64_t warmup = 0; ///< the factor rises from 0 to 1 over it, on a line
  /// Length of the decay. Linear, cosine: it follows the warm-up; without one it takes all that is left of `total`.
  /// WSD: it is the end of `total`. The others have none.
  std::optional<std::int64_t> decay{};
  std::int64_t total = 0;                     ///< length of the run
  double min_ratio = 0;                       ///< the factor never falls below it once the warm-up is done
  DecayShape wsd_shape = DecayShape::kLinear; ///< of WSD's decay
};

/// A function of how far a run is and of nothing else: a run that is resumed goes on with the same numbers.
class LrSchedule {
 public:
  /// @throws InputError bad-flag when the lengths do not fit into `total`, when WSD has no decay, when the inverse
  ///         square root has no warm-up (its time scale), and when a schedule is given what it does not have
  explicit LrSchedule(const LrScheduleOptions& options);

  /// @param done  steps or tokens before the step that is asked about: 0 for the first
  double factor(std::int64_t done) const;

 private:
  double decayed(DecayShape shape, std::int64_t begin, std::int64_t length, std::int64_t done) const;

  LrScheduleOptions options_;
};

} // namespace tieshard
