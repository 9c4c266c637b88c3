#include "tieshard/runtime/fsdp/sharded_mark.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace tieshard {
namespace {

/// Weak, so that a tensor can go, and a new one at its address is not taken for it.
struct Marks {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> tensors;
};

Marks& marks() {
  static Marks all;
  return all;
}

} // namespace

void mark_sharded(const at::Tensor& parameter) {
  const std::lock_guard lock(marks().mutex);
  std::erase_if(marks().tensors, [](const auto& mark) { return mark.second.expired(); });
  marks().tensors.insert_or_assign(parameter.unsafeGetTensorImpl(),
                                   c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()));
}

bool is_marked_sharded(const at::Tensor& parameter) {
  const std::lock_guard lock(marks().mutex);
  const auto found = marks().tensors.find(parameter.unsafeGetTensorImpl());
  return found != marks().tensors.end() && !found->second.expired();
}

} // namespace tieshard
