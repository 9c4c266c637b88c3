#include "tieshard/runtime/load/materialize.h"

#include <ATen/ATen.h>

namespace tieshard {
namespace {

void become(const at::Tensor& tensor, const at::Tensor& other) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->_change_backend_component_keys(other.device());
  impl->set_storage_and_dtype(other.storage(), other.dtype());
  impl->set_sizes_and_strides(other.sizes(), other.strides());
}

} // namespace

bool materialize(const at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (!tensor.is_meta()) {
    return false;
  }
  become(tensor, at::empty(sizes, at::TensorOptions().dtype(dtype).device(at::kCPU)));
  return true;
}

void dematerialize(const at::Tensor& tensor, at::IntArrayRef sizes) {
  become(tensor, at::empty(sizes, tensor.options().device(at::kMeta)));
}

} // namespace tieshard
