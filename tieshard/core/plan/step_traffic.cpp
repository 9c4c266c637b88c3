#include "tieshard/core/plan/step_traffic.h"

#include <algorithm>

namespace tieshard {
namespace {

std::uint64_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::uint64_t>(elements) * static_cast<std::uint64_t>(bits(dtype)) / 8;
}

} // namespace

StepTraffic step_traffic(const ShardPlan& plan, const TrafficOptions& options) {
  StepTraffic traffic;
  std::uint64_t root = 0;
  std::uint64_t largest = 0;
  std::uint64_t all = 0;
  for (std::size_t u = 0; u < plan.units().size(); ++u) {
    std::uint64_t whole = 0;
    std::uint64_t gathered = 0;
    std::uint64_t gathered_padding = 0;
    for (const std::size_t i : plan.units()[u].parameters) {
      const ShardedParameter& parameter = plan.parameters()[i];
      const std::int64_t part = numel(plan.local_shape(parameter, 0));
      whole += bytes_of(numel(parameter.shape), options.compute_dtype);
      if (parameter.dim >= 0) {
        const auto others = static_cast<std::uint64_t>(plan.ranks() - 1);
        gathered += others * bytes_of(part, options.compute_dtype);
        traffic.reduce_scatter_bytes += others * bytes_of(part, parameter.dtype);
        // The parts of all ranks together, the largest each, are the parameter and what fills it up.
        const std::int64_t filled = plan.ranks() * part - numel(parameter.shape);
        gathered_padding += bytes_of(filled, options.compute_dtype);
        traffic.padding_bytes += bytes_of(filled, parameter.dtype);
      }
      traffic.all_reduce_bytes += 2 * bytes_of(part, parameter.dtype) *
                                  static_cast<std::uint64_t>(options.replicas - 1) /
                                  static_cast<std::uint64_t>(options.replicas);
    }
    const bool twice = u != 0 && options.reshard_after_forward;
    traffic.all_gather_bytes += twice ? 2 * gathered : gathered;
    traffic.padding_bytes += twice ? 2 * gathered_padding : gathered_padding;
    all += whole;
    root += u == 0 ? whole : 0;
    largest = u == 0 ? largest : std::max(largest, whole);
  }
  traffic.in_flight_bytes = options.reshard_after_forward ? root + largest : all;
  return traffic;
}

double seconds_at(std::uint64_t bytes, std::uint64_t bytes_per_second) {
  return static_cast<double>(bytes) / static_cast<double>(bytes_per_second);
}

} // namespace tieshard
