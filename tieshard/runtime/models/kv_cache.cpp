#include "tieshard/runtime/models/kv_cache.h"

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"

namespace tieshard {

KvCache::KvCache(std::int64_t layers, std::int64_t capacity)
    : layers_(static_cast<std::size_t>(layers)), capacity_(capacity) {}

std::pair<at::Tensor, at::Tensor> KvCache::append(std::int64_t layer,
                                                  const at::Tensor& keys,
                                                  const at::Tensor& values) {
  const std::int64_t end = length_ + keys.size(2);
  if (layer < 0 || layer >= static_cast<std::int64_t>(layers_.size()) || end > capacity_) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a cache of keys and values is too small",
                      .where = concat("layer ", layer, ", tokens ", length_, " to ", end),
                      .why = concat("it was made for ", layers_.size(), " layers and ", capacity_, " tokens"),
                      .fix = "make it for cached_layers() of the model and for all tokens of prompt and answer"});
  }
  Layer& held = layers_[static_cast<std::size_t>(layer)];
  if (!held.keys.defined()) {
    const auto room = [this](const at::Tensor& like) {
      return at::empty({like.size(0), like.size(1), capacity_, like.size(3)}, like.options());
    };
    held = {.keys = room(keys), .values = room(values)};
  }
  held.keys.narrow(2, length_, keys.size(2)).copy_(keys);
  held.values.narrow(2, length_, values.size(2)).copy_(values);
  return {held.keys.narrow(2, 0, end), held.values.narrow(2, 0, end)};
}

} // namespace tieshard
