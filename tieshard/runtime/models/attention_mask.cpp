#include "tieshard/runtime/models/attention_mask.h"

#include <limits>

#include <ATen/ATen.h>

namespace tieshard {

AttentionMask make_attention_mask(std::int64_t length, const AttentionMaskOptions& options) {
  const std::int64_t keys = options.past + length;
  const bool windowed = options.window > 0 && options.window < keys;
  if (!windowed && !options.documents_BT.defined()) {
    if (options.past == 0) {
      return {.causal = true};
    }
    if (length == 1) {
      return {}; // the newest token sees all
    }
  }
  const at::TensorOptions whole_numbers = options.options.dtype(at::kLong);
  const at::Tensor query = at::arange(options.past, keys, whole_numbers).unsqueeze(1);
  const at::Tensor key = at::arange(keys, whole_numbers).unsqueeze(0);
  at::Tensor seen = key <= query;
  if (windowed) {
    seen = at::logical_and(seen, key > query - options.window);
  }
  if (options.documents_BT.defined()) {
    const at::Tensor same = options.documents_BT.unsqueeze(2) == options.documents_BT.unsqueeze(1); // [B, T, T]
    seen = at::logical_and(seen, same.to(options.options.device())).unsqueeze(1);
  }
  const at::Tensor bias = at::zeros(seen.sizes(), options.options);
  return {.bias = bias.masked_fill_(at::logical_not(seen), -std::numeric_limits<double>::infinity())};
}

at::Tensor token_positions(std::int64_t length, std::int64_t past, const at::Tensor& documents_BT, at::Device device) {
  const at::Tensor index = at::arange(past, past + length, at::TensorOptions(at::kLong).device(device));
  if (!documents_BT.defined()) {
    return index;
  }
  const at::Tensor documents = documents_BT.to(device);
  const at::Tensor begins = at::cat({at::ones({documents.size(0), 1}, documents.options().dtype(at::kBool)),
                                     documents.narrow(1, 1, length - 1) != documents.narrow(1, 0, length - 1)},
                                    1);
  const at::Tensor begin = std::get<0>(at::cummax(at::where(begins, index, at::zeros_like(index)), 1));
  return index - begin;
}

} // namespace tieshard
