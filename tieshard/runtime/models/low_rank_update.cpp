#include "tieshard/runtime/models/low_rank_update.h"

#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tieshard/runtime/models/linear_kernel.h"

namespace tieshard {
namespace {

/// x A^T in A's dtype. Keeps x as it came: the layer keeps the same tensor, or needs none.
struct NarrowFunction : torch::autograd::Function<NarrowFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& a) {
    context->save_for_backward({x, a});
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = a.size(0);
    return matmul_transposed(x.reshape({-1, x.size(-1)}).to(a.scalar_type()), a).view(shape);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& a = saved[1];
    const at::Tensor gradient = gradients[0].reshape({-1, a.size(0)});
    at::Tensor x_gradient;
    at::Tensor a_gradient;
    if (context->needs_input_grad(0)) {
      x_gradient = matmul_transposed(gradient, a.t()).to(x.scalar_type()).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      a_gradient = matmul_transposed(gradient.t(), x.reshape({-1, x.size(-1)}).to(a.scalar_type()).t());
    }
    return {x_gradient, a_gradient};
  }
};

} // namespace

at::Tensor LowRankUpdate::down() const {
  return turned ? b.t() : a;
}

at::Tensor LowRankUpdate::up() const {
  return turned ? a.t() : b;
}

at::Tensor LowRankUpdate::narrow(const at::Tensor& x, bool training) const {
  const bool drops = training && dropout > 0;
  return NarrowFunction::apply(drops ? at::dropout(x, dropout, /*train=*/true) : x, down()) * scaling;
}

at::Tensor LowRankUpdate::add_to(const at::Tensor& y, const at::Tensor& x, bool training) const {
  return (y + apply_linear(narrow(x, training), up())).to(y.scalar_type());
}

at::Tensor LowRankUpdate::add_to_rows(const at::Tensor& y, const at::Tensor& ids, std::int64_t padding_idx) const {
  const at::Tensor rows = at::embedding(down().t(), ids, padding_idx) * scaling;
  return (y + apply_linear(rows, up())).to(y.scalar_type());
}

} // namespace tieshard
