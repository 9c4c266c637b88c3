#include "tieshard/runtime/models/t5_positions.h"

#include <cmath>

#include <ATen/ATen.h>

namespace tieshard {

at::Tensor t5_position_buckets(std::int64_t length, bool bidirectional, std::int64_t buckets, std::int64_t distance) {
  const at::Tensor index = at::arange(length, at::kLong);
  const at::Tensor forwards = index.unsqueeze(0) - index.unsqueeze(1); // from the query to the key
  const std::int64_t directed = bidirectional ? buckets / 2 : buckets;
  const at::Tensor apart = bidirectional ? forwards.abs() : forwards.neg().clamp_min(0);
  const std::int64_t exact = directed / 2;
  // In float32, as the weights were trained: at bucket boundaries float64 may give the neighbour.
  const at::Tensor growth = at::log(apart.to(at::kFloat) / exact) /
                            std::log(static_cast<double>(distance) / static_cast<double>(exact)) * (directed - exact);
  const at::Tensor far = (growth.to(at::kLong) + exact).clamp_max(directed - 1);
  const at::Tensor bucket = at::where(apart < exact, apart, far);
  return bidirectional ? bucket + (forwards > 0).to(at::kLong) * directed : bucket;
}

} // namespace tieshard
