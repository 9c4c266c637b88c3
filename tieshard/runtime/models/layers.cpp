#include "tieshard/runtime/models/layers.h"

#include <ATen/ATen.h>

#include "tieshard/runtime/models/lean_functions.h"
#include "tieshard/runtime/models/linear_kernel.h"

namespace tieshard {
LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool with_bias, const at::TensorOptions& options)
    : in_(in), out_(out) {
  weight = register_parameter("weight", at::empty({out, in}, options));
  if (with_bias) {
    bias = register_parameter("bias", at::empty({out}, options));
  }
}

LinearImpl::LinearImpl(const at::Tensor& tied)
    : weight(register_parameter("weight", tied)), in_(tied.size(1)), out_(tied.size(0)) {}

at::Tensor LinearImpl::forward(const at::Tensor& x) const {
  const at::Tensor y = apply_linear(x, weight, bias);
  return update ? update->add_to(y, x, is_training()) : y;
}

EmbeddingImpl::EmbeddingImpl(std::int64_t count,
                             std::int64_t size,
                             std::optional<std::int64_t> padding_idx,
                             const at::TensorOptions& options,
                             bool shared)
    : weight(register_parameter("weight", at::empty({count, size}, options))),
      count_(count),
      size_(size),
      padding_idx_(padding_idx.value_or(-1)) {
  if (shared) {
    shared_.emplace(weight);
  }
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) const {
  const at::Tensor y = shared_ ? shared_->lookup(weight, ids, padding_idx_) : at::embedding(weight, ids, padding_idx_);
  return update ? update->add_to_rows(y, ids, padding_idx_) : y;
}

RmsNormImpl::RmsNormImpl(std::int64_t size, double eps, const at::TensorOptions& options, NormScale scale)
    : weight(register_parameter("weight", at::empty({size}, options))), eps_(eps), scale_(scale) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) const {
  return rms_norm(x, weight, eps_, scale_);
}

} // namespace tieshard
