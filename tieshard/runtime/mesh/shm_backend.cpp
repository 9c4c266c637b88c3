#include "tieshard/runtime/mesh/shm_backend.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/shm/reduce_elements.h"
#include "tieshard/core/shm/shm_collectives.h"
#include "tieshard/runtime/mesh/shm_rendezvous.h"

namespace tieshard {

DType shm_dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    case at::kLong:
      return DType::kI64;
    case at::kInt:
      return DType::kI32;
    case at::kShort:
      return DType::kI16;
    case at::kChar:
      return DType::kI8;
    case at::kByte:
      return DType::kU8;
    default:
      TORCH_CHECK(false, "the shared-memory backend does not reduce ", tensor.scalar_type());
  }
}

namespace {

/// Work that was done before it was handed out.
class CompletedWork final : public c10d::Work {
 public:
  CompletedWork(int rank, c10d::OpType type) : Work(rank, type) {
    finish();
  }
};

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

const std::byte* const_bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

void require_usable(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_sparse(),
              "the shared-memory backend takes contiguous CPU tensors, got one on ",
              tensor.device(),
              " of sizes ",
              tensor.sizes(),
              " and strides ",
              tensor.strides());
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "the shared-memory backend takes one tensor a call, got ", tensors.size());
  require_usable(tensors.front());
  return tensors.front();
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    default:
      TORCH_CHECK(false, "the shared-memory backend knows SUM, MIN and MAX, got reduction ", static_cast<int>(op.op_));
  }
}

class ShmBackend final : public c10d::Backend {
 public:
  ShmBackend(std::unique_ptr<ShmGroup> group, int rank, int size) : Backend(rank, size), group_(std::move(group)) {}

  const std::string getBackendName() const override {
    return "shm";
  }

  ShmGroup& group() {
    return *group_;
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output,
                                                 at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    require_usable(output);
    require_usable(input);
    TORCH_CHECK(output.scalar_type() == input.scalar_type() && output.numel() == input.numel() * getSize(),
                "all_gather puts the inputs of all ranks into an output of ",
                getSize(),
                " times their elements and of their dtype, got ",
                output.numel(),
                " and ",
                input.numel());
    tieshard::all_gather(*group_, bytes_of(output), const_bytes_of(input), input.nbytes());
    return done(c10d::OpType::_ALLGATHER_BASE);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    at::Tensor input = only(inputs);
    TORCH_CHECK(outputs.size() == 1 && outputs.front().size() == static_cast<std::size_t>(getSize()),
                "all_gather needs one output for each of the ",
                getSize(),
                " ranks");
    at::Tensor all = at::empty({getSize(), input.numel()}, input.options());
    _allgather_base(all, input, options);
    for (int rank = 0; rank < getSize(); ++rank) {
      at::Tensor& output = outputs.front()[static_cast<std::size_t>(rank)];
      output.copy_(all[rank].view(output.sizes()));
    }
    return done(c10d::OpType::ALLGATHER);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output,
                                                      at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    require_usable(output);
    require_usable(input);
    TORCH_CHECK(output.scalar_type() == input.scalar_type() && input.numel() == output.numel() * getSize(),
                "reduce_scatter gives each rank one of ",
                getSize(),
                " equal parts of the input, in its dtype, got ",
                input.numel(),
                " and ",
                output.numel());
    tieshard::reduce_scatter(*group_,
                             bytes_of(output),
                             const_bytes_of(input),
                             static_cast<std::size_t>(output.numel()),
                             shm_dtype(input),
                             reduction_of(options.reduceOp));
    return done(c10d::OpType::_REDUCE_SCATTER_BASE);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = only(tensors);
    tieshard::all_reduce(*group_,
                         bytes_of(tensor),
                         static_cast<std::size_t>(tensor.numel()),
                         shm_dtype(tensor),
                         reduction_of(options.reduceOp));
    return done(c10d::OpType::ALLREDUCE);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = only(tensors);
    TORCH_CHECK(options.rootRank >= 0 && options.rootRank < getSize(), "no rank ", options.rootRank, " to broadcast");
    tieshard::broadcast(*group_, bytes_of(tensor), tensor.nbytes(), static_cast<std::uint32_t>(options.rootRank));
    return done(c10d::OpType::BROADCAST);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    tieshard::barrier(*group_);
    return done(c10d::OpType::BARRIER);
  }

 private:
  c10::intrusive_ptr<c10d::Work> done(c10d::OpType type) const {
    return c10::make_intrusive<CompletedWork>(getRank(), type);
  }

  std::unique_ptr<ShmGroup> group_;
};

} // namespace

ShmConnection connect_shm(RollCall& calls, bool wanted) {
  ShmMeeting meeting = meet_over_shm(calls, wanted);
  if (meeting.group == nullptr) {
    return {.backend = nullptr, .why_not = std::move(meeting.why_not)};
  }
  auto made = c10::make_intrusive<ShmBackend>(
      std::move(meeting.group), static_cast<int>(calls.place()), static_cast<int>(calls.size()));
  c10d::Backend* backend = made.get();
  return {.backend = {backend, [made = std::move(made)](c10d::Backend*) mutable { made.reset(); }}, .why_not = {}};
}

ShmGroup* shm_group(c10d::Backend& backend) {
  auto* const shm = dynamic_cast<ShmBackend*>(&backend);
  return shm == nullptr ? nullptr : &shm->group();
}

} // namespace tieshard
