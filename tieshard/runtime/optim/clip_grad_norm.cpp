#include "tieshard/runtime/optim/clip_grad_norm.h"

#include <cmath>
#include <cstdint>
#include <string>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"

namespace tieshard {
namespace {

[[noreturn]] void refuse(const FsdpState& state) {
  const std::string rank = state.mesh().where();
  agree(state.mesh(), "clip_grad_norm", [&] {
    std::string names;
    for (const FsdpParam* parameter : state.managed()) {
      const at::Tensor& gradient = parameter->parameter().grad();
      if (gradient.defined() && !gradient.isfinite().all().item<bool>()) {
        names += concat(names.empty() ? "" : ", ", parameter->fqn());
      }
    }
    if (!names.empty()) {
      throw InputError({.code = Code::kNonFiniteGradient,
                        .what = "a gradient is infinite or not a number",
                        .where = concat(rank, ", ", names),
                        .fix = "lower the learning rate, compute in float32, or look for bad data at this step"});
    }
  });
  throw InputError({.code = Code::kNonFiniteGradient,
                    .what = "the sum of squares of the gradients overflows",
                    .where = rank,
                    .fix = "lower the learning rate or look for bad data at this step"});
}

/// Elements that are widened to float64 at a time: of a whole embedding that would be twice its gradient's memory.
constexpr std::int64_t kPieceNumel = std::int64_t{1} << 20;

/// The sum of the squares of all elements, float64.
at::Tensor square_sum(const at::Tensor& gradient) {
  at::Tensor sum = at::zeros({1}, gradient.options().dtype(at::kDouble));
  if (gradient.numel() == 0) {
    return sum;
  }
  for (const at::Tensor& piece : gradient.reshape({-1}).split(kPieceNumel)) {
    sum += at::linalg_vector_norm(piece, 2, {}, /*keepdim=*/false, at::kDouble).square();
  }
  return sum;
}

} // namespace

double clip_grad_norm(const FsdpState& state, double max_norm) {
  const at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({1}, at::kDouble);
  for (const FsdpParam* parameter : state.managed()) {
    const at::Tensor& gradient = parameter->parameter().grad();
    const bool counts_here = !parameter->replicated() || state.mesh().rank() == 0;
    if (gradient.defined() && counts_here) {
      const at::Tensor sum = square_sum(gradient);
      squares = squares.to(sum.device()).add_(sum);
    }
  }
  squares = squares.to(at::kCPU);
  all_reduce(state.mesh(), squares);
  const double norm = std::sqrt(squares.item<double>());
  if (!std::isfinite(norm)) {
    refuse(state);
  }
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1.0) {
    for (const FsdpParam* parameter : state.managed()) {
      at::Tensor gradient = parameter->parameter().grad();
      if (gradient.defined()) {
        gradient.mul_(scale);
      }
    }
  }
  return norm;
}

} // namespace tieshard
