#include "tieshard/runtime/load/materialize.h"

#include <ATen/ATen.h>

namespace tieshard {

bool materialize(const at::Tensor& tensor, const at::Tensor& values) {
  if (!tensor.is_meta()) {
    return false;
  }
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->_change_backend_component_keys(values.device());
  impl->set_storage_and_dtype(values.storage(), values.dtype());
  impl->set_sizes_and_strides(values.sizes(), values.strides(), values.storage_offset());
  return true;
}

} // namespace tieshard
