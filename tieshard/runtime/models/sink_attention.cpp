#include "tieshard/runtime/models/sink_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tieshard/runtime/models/first_derivative.h"

namespace tieshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct SinkAttentionFunction : Function<SinkAttentionFunction> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const at::Tensor& sinks,
                            const std::optional<at::Tensor>& bias,
                            bool causal,
                            double scale) {
    auto [y, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, bias, scale);
    const at::Tensor sinks_N1 = sinks.to(logsumexp.scalar_type()).unsqueeze(-1);
    const at::Tensor with_sink = at::logaddexp(logsumexp, sinks_N1);
    y.mul_((logsumexp - with_sink).exp_().unsqueeze(-1));
    context->save_for_backward({q, k, v, sinks, y, with_sink, bias.value_or(at::Tensor())});
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("sink_attention");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& y = saved[4];
    const at::Tensor& with_sink = saved[5];
    const at::Tensor& bias = saved[6];
    auto [q_gradient, k_gradient, v_gradient] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(gradients[0],
                                                                 saved[0],
                                                                 saved[1],
                                                                 saved[2],
                                                                 y,
                                                                 with_sink,
                                                                 0.0,
                                                                 context->saved_data["causal"].toBool(),
                                                                 bias.defined() ? std::optional(bias) : std::nullopt,
                                                                 context->saved_data["scale"].toDouble());
    at::Tensor sinks_gradient;
    if (context->needs_input_grad(3)) {
      const at::Tensor& sinks = saved[3];
      const at::Tensor weight = (sinks.to(with_sink.scalar_type()).unsqueeze(-1) - with_sink).exp_(); // [B, N, T]
      const at::Tensor along = (gradients[0].to(at::kFloat) * y.to(at::kFloat)).sum(-1);
      sinks_gradient = (weight * along).sum(at::IntArrayRef{0, 2}).neg_().to(sinks.scalar_type());
    }
    return {q_gradient, k_gradient, v_gradient, sinks_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

} // namespace

at::Tensor sink_attention(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& sinks,
                          const std::optional<at::Tensor>& bias,
                          bool causal,
                          double scale) {
  return SinkAttentionFunction::apply(q, k, v, sinks, bias, causal, scale);
}

} // namespace tieshard
