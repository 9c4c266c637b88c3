// tests/support/random_decoder.h
//
// A decoder of random weights, without files: for tests and benchmarks that need a model and no checkpoint.

#pragma once

#include <cmath>
#include <memory>

#include <ATen/ATen.h>

#include "tieshard/runtime/models/decoder.h"
#include "tieshard/runtime/tensors/module_parameters.h"

namespace tieshard::testing {

/// Llama's switches with sizes of one's own; `heads` query heads of `head_dim` over `kv_heads`.
inline DecoderConfig llama_sizes(std::int64_t vocab,
                                 std::int64_t hidden,
                                 std::int64_t inner,
                                 std::int64_t layers,
                                 std::int64_t heads,
                                 std::int64_t kv_heads,
                                 std::int64_t head_dim) {
  DecoderConfig config;
  config.vocab_size = vocab;
  config.hidden_size = hidden;
  config.intermediate_size = inner;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.max_position_embeddings = 8192;
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  config.ropes = {RopeConfig{}};
  config.layers.resize(static_cast<std::size_t>(layers));
  return config;
}

/// Norms are 1, matrices normal with `deviation`; the same whenever it is made. It trains.
inline std::shared_ptr<DecoderForCausalLm> random_decoder(const DecoderConfig& config,
                                                          double deviation,
                                                          at::ScalarType dtype = at::kFloat) {
  auto model = std::make_shared<DecoderForCausalLm>(config, /*tied=*/true, at::TensorOptions(dtype));
  at::manual_seed(1);
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : unique_parameters(*model)) {
    at::Tensor values = parameter.tensor;
    values.dim() == 1 ? values.fill_(1.0) : values.normal_(0.0, deviation);
  }
  model->train();
  return model;
}

} // namespace tieshard::testing
