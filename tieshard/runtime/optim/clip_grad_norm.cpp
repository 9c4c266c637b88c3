#include "tieshard/runtime/optim/clip_grad_norm.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"

namespace tieshard {
namespace {

/// The parameters whose gradients on this rank are not finite, separated by commas.
std::string non_finite_here(const FsdpState& state) {
  std::string names;
  for (const FsdpParam* parameter : state.managed()) {
    const at::Tensor& gradient = parameter->parameter().grad();
    if (gradient.defined() && !gradient.isfinite().all().item<bool>()) {
      names += concat(names.empty() ? "" : ", ", parameter->fqn());
    }
  }
  return names;
}

Diagnostic not_finite(std::string where) {
  return {.code = Code::kNonFiniteGradient,
          .what = "a gradient is infinite or not a number",
          .where = std::move(where),
          .fix = "lower the learning rate, compute in float32, or look for bad data at this step"};
}

Diagnostic overflow(std::string where) {
  return {.code = Code::kNonFiniteGradient,
          .what = "the sum of squares of the gradients overflows",
          .where = std::move(where),
          .fix = "lower the learning rate or look for bad data at this step"};
}

[[noreturn]] void refuse(const FsdpState& state) {
  const std::string rank = state.mesh().where();
  agree(state.mesh(), "clip_grad_norm", [&] {
    const std::string names = non_finite_here(state);
    if (!names.empty()) {
      throw InputError(not_finite(concat(rank, ", ", names)));
    }
  });
  throw InputError(overflow(rank));
}

/// What every rank found, on every rank.
Diagnostic collected(const FsdpState& state) {
  const std::string names = non_finite_here(state);
  std::string where;
  for (const std::string& found : all_gather_text(state.mesh(),
                                                  names.empty() ? "" : concat(state.mesh().where(), ", ", names),
                                                  CollectivePurpose::named("gradients that are not finite"))) {
    where += concat(where.empty() || found.empty() ? "" : "; ", found);
  }
  Diagnostic finding = where.empty() ? overflow("every rank") : not_finite(where);
  finding.level = Level::kWarning;
  return finding;
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

/// A negative bound would turn every gradient round, and gradients that are kept unreduced would be left out.
void require_clippable(const FsdpState& state, double max_norm) {
  if (!(max_norm > 0)) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "gradients are to be clipped to a norm that is not above 0",
                      .where = state.mesh().where(),
                      .why = concat("expected a number above 0, got ", max_norm),
                      .fix = "give the largest norm, or infinity to measure only"});
  }
  state.require_reduced_gradients();
}

double whole_norm(const FsdpState& state) {
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
  return std::sqrt(squares.item<double>());
}

void clip(const FsdpState& state, double norm, double max_norm) {
  const double scale = max_norm / (norm + 1e-6);
  if (scale >= 1.0) {
    return;
  }
  for (const FsdpParam* parameter : state.managed()) {
    at::Tensor gradient = parameter->parameter().grad();
    if (gradient.defined()) {
      gradient.mul_(scale);
    }
  }
}

} // namespace

double clip_grad_norm(const FsdpState& state, double max_norm) {
  require_clippable(state, max_norm);
  const at::NoGradGuard no_grad;
  const double norm = whole_norm(state);
  if (!std::isfinite(norm)) {
    refuse(state);
  }
  clip(state, norm, max_norm);
  return norm;
}

ClippedNorm clip_finite_grad_norm(const FsdpState& state, double max_norm) {
  require_clippable(state, max_norm);
  const at::NoGradGuard no_grad;
  const double norm = whole_norm(state);
  if (!std::isfinite(norm)) {
    return {.norm = norm, .non_finite = collected(state)};
  }
  clip(state, norm, max_norm);
  return {.norm = norm};
}

} // namespace tieshard
