#include "tieshard/runtime/models/lean_functions.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tieshard/runtime/models/first_derivative.h"

namespace tieshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor scale = wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
    context->save_for_backward({x, weight, scale});
    return (wide * scale).to(x.scalar_type()) * weight;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("rms_norm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& scale = saved[2];
    const at::Tensor normed = x.to(at::kFloat) * scale;
    at::Tensor x_gradient;
    at::Tensor weight_gradient;
    if (context->needs_input_grad(1)) {
      const at::Tensor product = gradients[0] * normed.to(x.scalar_type());
      weight_gradient = product.reshape({-1, product.size(-1)}).sum(0);
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor along = (gradients[0] * weight).to(at::kFloat);
      const at::Tensor mean = (along * normed).mean(-1, /*keepdim=*/true);
      x_gradient = (along - normed * mean).mul_(scale).to(x.scalar_type());
    }
    return {x_gradient, weight_gradient, at::Tensor()};
  }
};

struct SiluTimesFunction : Function<SiluTimesFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("silu_times");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gate = saved[0];
    const at::Tensor& up = saved[1];
    at::Tensor gate_gradient;
    at::Tensor up_gradient;
    if (context->needs_input_grad(0)) {
      gate_gradient = at::silu_backward(gradients[0] * up, gate);
    }
    if (context->needs_input_grad(1)) {
      up_gradient = at::silu(gate).mul_(gradients[0]);
    }
    return {gate_gradient, up_gradient};
  }
};

} // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}

at::Tensor silu_times(const at::Tensor& gate, const at::Tensor& up) {
  return SiluTimesFunction::apply(gate, up);
}

} // namespace tieshard
