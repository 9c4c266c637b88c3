#include "tieshard/runtime/models/grouped_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tieshard/runtime/models/first_derivative.h"
#include "tieshard/runtime/models/linear_kernel.h"

namespace tieshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Calls visit(group, first row, rows) for every group with rows.
template <typename Visit>
void over_groups(const std::vector<std::int64_t>& counts, const Visit& visit) {
  std::int64_t first = 0;
  for (std::size_t group = 0; group < counts.size(); ++group) {
    if (counts[group] > 0) {
      visit(static_cast<std::int64_t>(group), first, counts[group]);
    }
    first += counts[group];
  }
}

struct GroupedLinearFunction : Function<GroupedLinearFunction> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const at::Tensor& bias,
                            const std::vector<std::int64_t>& counts) {
    context->save_for_backward({x, weight});
    context->saved_data["counts"] = counts;
    at::Tensor y = at::empty({x.size(0), weight.size(2)}, x.options());
    over_groups(counts, [&](std::int64_t group, std::int64_t first, std::int64_t rows) {
      const at::Tensor product = matmul_transposed(x.narrow(0, first, rows), weight[group].t());
      at::Tensor out = y.narrow(0, first, rows);
      at::add_out(out, product, bias[group]);
    });
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("grouped_linear");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const std::vector<std::int64_t> counts = context->saved_data["counts"].toIntVector();
    at::Tensor x_gradient = context->needs_input_grad(0) ? at::empty_like(x) : at::Tensor();
    at::Tensor weight_gradient = context->needs_input_grad(1) ? at::empty_like(weight) : at::Tensor();
    at::Tensor bias_gradient =
        context->needs_input_grad(2) ? at::zeros({weight.size(0), weight.size(2)}, weight.options()) : at::Tensor();
    for (std::size_t group = 0; weight_gradient.defined() && group < counts.size(); ++group) {
      if (counts[group] == 0) {
        weight_gradient[static_cast<std::int64_t>(group)].zero_();
      }
    }
    over_groups(counts, [&](std::int64_t group, std::int64_t first, std::int64_t rows) {
      const at::Tensor y_gradient = gradients[0].narrow(0, first, rows);
      if (x_gradient.defined()) {
        x_gradient.narrow(0, first, rows).copy_(matmul_transposed(y_gradient, weight[group]));
      }
      if (weight_gradient.defined()) {
        weight_gradient[group].copy_(matmul_transposed(x.narrow(0, first, rows).t(), y_gradient.t()));
      }
      if (bias_gradient.defined()) {
        bias_gradient[group].copy_(y_gradient.sum(0));
      }
    });
    return {x_gradient, weight_gradient, bias_gradient, at::Tensor()};
  }
};

} // namespace

at::Tensor grouped_linear(const at::Tensor& x_MI,
                          const at::Tensor& weight_EIO,
                          const at::Tensor& bias_EO,
                          const std::vector<std::int64_t>& counts) {
  return GroupedLinearFunction::apply(x_MI, weight_EIO, bias_EO, counts);
}

} // namespace tieshard
