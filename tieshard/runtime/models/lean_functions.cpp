#include "tieshard/runtime/models/lean_functions.h"

#include <optional>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tieshard/runtime/models/first_derivative.h"

namespace tieshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr double kSwigluSlope = 1.702;

/// What the normed values are multiplied by, in the dtype in which that is done.
at::Tensor norm_factor(const at::Tensor& weight, NormScale scale) {
  switch (scale) {
    case NormScale::kWeight:
      return weight;
    case NormScale::kWeightInFloat32:
      return weight.to(at::kFloat);
    case NormScale::kOnePlusWeight:
      return weight.to(at::kFloat) + 1.0;
  }
  return weight;
}

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(
      AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps, std::int64_t norm_scale) {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor scale = wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
    context->save_for_backward({x, weight, scale});
    context->saved_data["norm_scale"] = norm_scale;
    const at::Tensor factor = norm_factor(weight, static_cast<NormScale>(norm_scale));
    return ((wide * scale).to(factor.scalar_type()) * factor).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("rms_norm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& scale = saved[2];
    const at::Tensor factor = norm_factor(weight, static_cast<NormScale>(context->saved_data["norm_scale"].toInt()));
    const at::Tensor y_gradient = gradients[0].to(factor.scalar_type());
    const at::Tensor normed = x.to(at::kFloat) * scale;
    at::Tensor x_gradient;
    at::Tensor weight_gradient;
    if (context->needs_input_grad(1)) {
      const at::Tensor product = y_gradient * normed.to(factor.scalar_type());
      weight_gradient = product.reshape({-1, product.size(-1)}).sum(0).to(weight.scalar_type());
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor along = (y_gradient * factor).to(at::kFloat);
      const at::Tensor mean = (along * normed).mean(-1, /*keepdim=*/true);
      x_gradient = (along - normed * mean).mul_(scale).to(x.scalar_type());
    }
    return {x_gradient, weight_gradient, at::Tensor(), at::Tensor()};
  }
};

const char* approximation(GateActivation activation) {
  return activation == GateActivation::kGeluTanh ? "tanh" : "none";
}

at::Tensor activate(const at::Tensor& gate, GateActivation activation) {
  return activation == GateActivation::kSilu ? at::silu(gate) : at::gelu(gate, approximation(activation));
}

struct ActivatedTimesFunction : Function<ActivatedTimesFunction> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& gate,
                            const at::Tensor& up,
                            std::int64_t activation) {
    context->save_for_backward({gate, up});
    context->saved_data["activation"] = activation;
    return activate(gate, static_cast<GateActivation>(activation)).mul_(up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("activated_times");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gate = saved[0];
    const at::Tensor& up = saved[1];
    const auto activation = static_cast<GateActivation>(context->saved_data["activation"].toInt());
    at::Tensor gate_gradient;
    at::Tensor up_gradient;
    if (context->needs_input_grad(0)) {
      const at::Tensor activated_gradient = gradients[0] * up;
      gate_gradient = activation == GateActivation::kSilu
                          ? at::silu_backward(activated_gradient, gate)
                          : at::gelu_backward(activated_gradient, gate, approximation(activation));
    }
    if (context->needs_input_grad(1)) {
      up_gradient = activate(gate, activation).mul_(gradients[0]);
    }
    return {gate_gradient, up_gradient, at::Tensor()};
  }
};

/// Every second element of the last dim, from `first` on.
at::Tensor every_second(const at::Tensor& x, std::int64_t first) {
  return x.slice(-1, first, std::nullopt, 2);
}

struct ClampedSwigluFunction : Function<ClampedSwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double limit) {
    context->save_for_backward({x});
    context->saved_data["limit"] = limit;
    const at::Tensor gate = every_second(x, 0).clamp_max(limit);
    const at::Tensor up = every_second(x, 1).clamp(-limit, limit);
    return at::sigmoid(gate * kSwigluSlope).mul_(gate).mul_(up.add_(1.0));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("clamped_swiglu");
    const at::Tensor x = context->get_saved_variables()[0];
    const double limit = context->saved_data["limit"].toDouble();
    const at::Tensor raw_gate = every_second(x, 0);
    const at::Tensor raw_up = every_second(x, 1);
    const at::Tensor gate = raw_gate.clamp_max(limit);
    const at::Tensor sigmoid = at::sigmoid(gate * kSwigluSlope);
    at::Tensor x_gradient = at::empty_like(x);
    at::Tensor to_up = gradients[0] * gate * sigmoid;
    every_second(x_gradient, 1).copy_(to_up.mul_(at::logical_and(raw_up >= -limit, raw_up <= limit)));
    at::Tensor to_gate = (gate * kSwigluSlope).mul_(1.0 - sigmoid).add_(1.0).mul_(sigmoid); // d g sigmoid(a g) / d g
    to_gate.mul_(raw_up.clamp(-limit, limit).add_(1.0)).mul_(gradients[0]).mul_(raw_gate <= limit);
    every_second(x_gradient, 0).copy_(to_gate);
    return {x_gradient, at::Tensor()};
  }
};

} // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormScale scale) {
  return RmsNormFunction::apply(x, weight, eps, static_cast<std::int64_t>(scale));
}

at::Tensor activated_times(const at::Tensor& gate, const at::Tensor& up, GateActivation activation) {
  return ActivatedTimesFunction::apply(gate, up, static_cast<std::int64_t>(activation));
}

at::Tensor clamped_swiglu(const at::Tensor& x, double limit) {
  return ClampedSwigluFunction::apply(x, limit);
}

at::Tensor softcap(const at::Tensor& x, double cap) {
  return at::tanh(x / cap) * cap;
}

} // namespace tieshard
