// tests/support/guarded_device.h
//
// A device for tests of code that has to run on any: whoever reads or writes its tensors' memory through a pointer, as
// if it were the host's, ends with a SIGSEGV. It computes by copying to the CPU and back.
//
// Source: PyTorch's interface for backends out of its tree, and its CPU fallback. The device has the name of one whose
// place LibTorch keeps free (hpu).
//
// To be included by one source of a test program: it registers the device's operators.

#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/library.h>

#include <sys/mman.h>
#include <unistd.h>

#include "tieshard/runtime/mesh/device_mesh.h"

namespace tieshard::testing {

inline const at::Device kGuardedDevice(c10::DeviceType::HPU, 0);

/// Each block is mapped twice: at the address that its tensors show, which may not be touched, and at another one.
class GuardedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t wanted) override {
    const std::size_t bytes = std::max<std::size_t>(wanted, 1);
    const int file = ::memfd_create("guarded", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0, "no memory for the guarded device");
    void* const shown = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
    void* const real = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    TORCH_CHECK(shown != MAP_FAILED && real != MAP_FAILED, "no memory for the guarded device");
    const std::lock_guard lock(mutex_);
    blocks_[shown] = {real, bytes};
    return {shown, shown, &GuardedMemory::release, kGuardedDevice};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &GuardedMemory::release;
  }

  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "memory of the guarded device is copied tensor by tensor");
  }

  void* real(const void* shown) {
    const std::lock_guard lock(mutex_);
    return blocks_.at(const_cast<void*>(shown)).first;
  }

  std::size_t blocks() {
    const std::lock_guard lock(mutex_);
    return blocks_.size();
  }

  static GuardedMemory& instance() {
    static auto* const memory = new GuardedMemory; // tensors may outlive every static
    return *memory;
  }

 private:
  static void release(void* shown) {
    GuardedMemory& memory = instance();
    const std::lock_guard lock(memory.mutex_);
    const auto [real, bytes] = memory.blocks_.at(shown);
    memory.blocks_.erase(shown);
    ::munmap(shown, bytes);
    ::munmap(real, bytes);
  }

  std::mutex mutex_;
  std::map<void*, std::pair<void*, std::size_t>> blocks_;
};

/// The device has one stream and works at once: an event has happened when it is recorded.
struct GuardedDevice final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::HPU> {
  c10::Device getDevice() const override {
    return kGuardedDevice;
  }

  c10::Device exchangeDevice(c10::Device /*device*/) const override {
    return kGuardedDevice;
  }

  c10::Stream getStream(c10::Device /*device*/) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kGuardedDevice);
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return getStream(device);
  }

  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return getStream(stream.device());
  }

  void record(void** /*event*/,
              const c10::Stream& /*stream*/,
              const c10::DeviceIndex /*device_index*/,
              const c10::EventFlag /*flag*/) const override {}

  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}

  bool queryEvent(void* /*event*/) const override {
    return true;
  }
};

/// What LibTorch asks of an accelerator before autograd and a generic copy use it: there is one, and it is ready.
struct GuardedHooks final : at::HPUHooksInterface {
  explicit GuardedHooks(at::HPUHooksArgs /*unused*/) {}

  void init() const override {}

  bool hasHPU() const override {
    return true;
  }

  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return true;
  }

  bool hasPrimaryContext(c10::DeviceIndex /*device_index*/) const override {
    return true;
  }

  c10::DeviceIndex deviceCount() const override {
    return 1;
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device_index*/) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
};

/// The tensor over the memory that may be touched.
inline at::Tensor touchable(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.storage().nbytes() == 0) {
    return tensor.is_cpu() ? tensor : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  }
  auto* const real = static_cast<std::byte*>(GuardedMemory::instance().real(tensor.storage().data()));
  return at::from_blob(real + tensor.storage_offset() * static_cast<std::int64_t>(tensor.element_size()),
                       tensor.sizes(),
                       tensor.strides(),
                       tensor.options().device(at::kCPU));
}

namespace guarded_operators {

inline at::Tensor empty(at::IntArrayRef size,
                        std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>,
                        std::optional<at::Device>,
                        std::optional<bool>,
                        std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size,
                                   &GuardedMemory::instance(),
                                   c10::DispatchKeySet(c10::DispatchKey::HPU),
                                   c10::dtype_or_default(dtype),
                                   format);
}

inline at::Tensor empty_strided(at::IntArrayRef size,
                                at::IntArrayRef stride,
                                std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout>,
                                std::optional<at::Device>,
                                std::optional<bool>) {
  return at::detail::empty_strided_generic(size,
                                           stride,
                                           &GuardedMemory::instance(),
                                           c10::DispatchKeySet(c10::DispatchKey::HPU),
                                           c10::dtype_or_default(dtype));
}

inline at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  touchable(target).copy_(touchable(source));
  return target;
}

/// Contiguous, with new bytes if there are too few.
inline const at::Tensor& resize_in_place(const at::Tensor& tensor,
                                         at::IntArrayRef size,
                                         std::optional<at::MemoryFormat>) {
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  const auto bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < bytes) {
    storage->set_data_ptr_noswap(GuardedMemory::instance().allocate(bytes));
    storage->set_nbytes(bytes);
  }
  return tensor;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (source.sizes() != target.sizes()) {
    resize_in_place(target, source.sizes(), std::nullopt);
  }
  return copy_from(source, target, false);
}

inline void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

} // namespace guarded_operators

C10_REGISTER_GUARD_IMPL(HPU, GuardedDevice);

TORCH_LIBRARY_IMPL(_, HPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&guarded_operators::on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("empty.memory_format", &guarded_operators::empty);
  library.impl("empty_strided", &guarded_operators::empty_strided);
  library.impl("_copy_from", &guarded_operators::copy_from);
  library.impl("_copy_from_and_resize", &guarded_operators::copy_from_and_resize);
  library.impl("resize_", &guarded_operators::resize_in_place);
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(at::native::view)));
}

/// Collectives of its tensors, over the host's connection of the same ranks.
class GuardedBackend final : public c10d::Backend {
 public:
  explicit GuardedBackend(const DeviceMesh& mesh)
      : Backend(static_cast<int>(mesh.rank()), static_cast<int>(mesh.size())), host_(mesh.backend()) {}

  const std::string getBackendName() const override {
    return "guarded";
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output,
                                                 at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    ++collectives;
    at::Tensor to = touchable(output);
    at::Tensor from = touchable(input);
    return host_->_allgather_base(to, from, options);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output,
                                                      at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    ++collectives;
    at::Tensor to = touchable(output);
    at::Tensor from = touchable(input);
    return host_->_reduce_scatter_base(to, from, options);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    ++collectives;
    std::vector<at::Tensor> here{touchable(tensors.front())};
    return host_->allreduce(here, options);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    ++collectives;
    std::vector<at::Tensor> here{touchable(tensors.front())};
    return host_->broadcast(here, options);
  }

  int collectives = 0; ///< begun so far

 private:
  std::shared_ptr<c10d::Backend> host_;
};

/// The mesh, with its model on the guarded device.
inline DeviceMesh guarded(const DeviceMesh& mesh) {
  std::shared_ptr<c10d::Backend> backend;
  if (mesh.size() > 1) {
    auto made = c10::make_intrusive<GuardedBackend>(mesh);
    c10d::Backend* const raw = made.get();
    backend = {raw, [made = std::move(made)](c10d::Backend*) mutable { made.reset(); }};
  }
  return mesh.on_device(kGuardedDevice, std::move(backend));
}

} // namespace tieshard::testing

namespace at { // where the registry's macro finds its names
C10_REGISTER_TYPED_CLASS(HPUHooksRegistry, "HPUHooks", tieshard::testing::GuardedHooks)
} // namespace at
