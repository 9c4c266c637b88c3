#include "tieshard/runtime/models/attention.h"

#include <limits>
#include <optional>

#include <ATen/ATen.h>

#include "tieshard/runtime/models/lean_functions.h"
#include "tieshard/runtime/models/sink_attention.h"

namespace tieshard {
namespace {

std::optional<at::Tensor> bias_of(const AttentionMask& mask) {
  return mask.bias.defined() ? std::optional(mask.bias) : std::nullopt;
}

/// The scores exist, [B, N, T, S].
at::Tensor attend_plainly(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          const AttentionMask& mask,
                          const AttentionOptions& options) {
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * options.scale;
  if (options.softcap > 0) {
    scores = softcap(scores, options.softcap);
  }
  if (mask.bias.defined()) {
    scores = scores + mask.bias;
  } else if (mask.causal) {
    const at::Tensor after = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu_(1);
    scores = scores.masked_fill(after, -std::numeric_limits<double>::infinity());
  }
  if (options.sinks.defined()) {
    const at::Tensor sinks = options.sinks.view({1, -1, 1, 1}).expand({q.size(0), q.size(1), q.size(2), 1});
    scores = at::cat({scores, sinks}, 3);
  }
  at::Tensor weights = at::softmax(scores, 3, at::kFloat).to(q.scalar_type()).narrow(3, 0, k.size(2));
  if (options.dropout > 0) {
    weights = at::dropout(weights, options.dropout, /*train=*/true);
  }
  return at::matmul(weights, v);
}

} // namespace

at::Tensor attend(const at::Tensor& q_BNTD,
                  const at::Tensor& k_BKSD,
                  const at::Tensor& v_BKSD,
                  const AttentionMask& mask,
                  const AttentionOptions& options) {
  const std::int64_t group = q_BNTD.size(1) / k_BKSD.size(1);
  const auto repeat = [group](const at::Tensor& x) { return group == 1 ? x : x.repeat_interleave(group, 1); };
  const at::Tensor k = repeat(k_BKSD);
  const at::Tensor v = repeat(v_BKSD);
  if (options.softcap > 0) {
    return attend_plainly(q_BNTD, k, v, mask, options);
  }
  if (!options.sinks.defined()) {
    return at::scaled_dot_product_attention(q_BNTD, k, v, bias_of(mask), options.dropout, mask.causal, options.scale);
  }
  if (options.dropout > 0 || !q_BNTD.is_cpu()) {
    return attend_plainly(q_BNTD, k, v, mask, options);
  }
  return sink_attention(q_BNTD, k, v, options.sinks, bias_of(mask), mask.causal, options.scale);
}

} // namespace tieshard
