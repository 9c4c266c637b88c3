#include "tieshard/runtime/models/linear_kernel.h"

#include <optional>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tieshard/runtime/models/first_derivative.h"

namespace tieshard {
namespace {

using Linear = at::Tensor(const at::Tensor&,
                          const at::Tensor&,
                          const std::optional<at::Tensor>&,
                          c10::string_view,
                          c10::List<std::optional<at::Scalar>>,
                          std::optional<c10::string_view>);

/// oneDNN's operator, or nothing in a torch that was built without it.
const std::optional<c10::TypedOperatorHandle<Linear>>& onednn_linear() {
  static const auto kernel = []() -> std::optional<c10::TypedOperatorHandle<Linear>> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!at::globalContext().hasMKLDNN() || !found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
      return std::nullopt;
    }
    return found->typed<Linear>();
  }();
  return kernel;
}

bool suits_onednn(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat && a.is_cpu() && b.is_cpu() && a.numel() > 0 &&
         b.numel() > 0 && at::globalContext().userEnabledMkldnn() && onednn_linear().has_value();
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["with_bias"] = bias.has_value();
    at::Tensor y = matmul_transposed(x.reshape({-1, x.size(-1)}), weight);
    if (bias) {
      y.add_(*bias);
    }
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return y.view(shape);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    refuse_second_derivative("apply_linear");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor y_gradient = gradients[0].reshape({-1, weight.size(0)});
    at::Tensor x_gradient;
    at::Tensor weight_gradient;
    at::Tensor bias_gradient;
    if (context->needs_input_grad(0)) {
      x_gradient = matmul_transposed(y_gradient, weight.t()).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      weight_gradient = matmul_transposed(y_gradient.t(), x.reshape({-1, x.size(-1)}).t());
    }
    if (context->saved_data["with_bias"].toBool() && context->needs_input_grad(2)) {
      bias_gradient = y_gradient.sum(0);
    }
    return {x_gradient, weight_gradient, bias_gradient};
  }
};

} // namespace

at::Tensor matmul_transposed(const at::Tensor& a, const at::Tensor& b) {
  if (!suits_onednn(a, b)) {
    return at::mm(a, b.t());
  }
  return onednn_linear()->call(a, b, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!suits_onednn(x, weight)) {
    return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
  }
  return LinearFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

} // namespace tieshard
