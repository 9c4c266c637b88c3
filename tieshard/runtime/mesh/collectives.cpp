#include "tieshard/runtime/mesh/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

/// The reason alone of our own errors; the first line of others.
std::string reason(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) {
    return own->diagnostic().why;
  }
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::function<void(const CollectiveCall&)>& the_observer() {
  static std::function<void(const CollectiveCall&)> observer;
  return observer;
}

/// Runs `work`; what it throws becomes our PeerError.
void or_collective_failed(const std::string& where,
                          const char* operation,
                          const std::string& unit,
                          const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    throw PeerError({.code = Code::kCollectiveFailed,
                     .what = "a collective failed, mostly because a rank is gone",
                     .where = concat(where, ", ", operation, unit.empty() ? "" : " of unit ", unit),
                     .why = reason(error),
                     .fix =
                         "look for the first rank that reported an error of its own; if none did, it was killed or its "
                         "host is unreachable"});
  }
}

/// Runs one collective of the backend that its tensors' device has, and waits for it. @param larger  the larger of its
/// input and output; undefined for none
template <typename Start>
void finish(const DeviceMesh& mesh,
            const char* operation,
            const std::string& unit,
            const at::Tensor& larger,
            const Start& start) {
  const auto bytes = larger.defined() ? static_cast<std::int64_t>(larger.nbytes()) : 0;
  c10d::Backend& backend = *mesh.backend(larger.defined() ? larger.device() : c10::kCPU);
  run_collective(mesh, operation, unit, bytes, [&] { start(backend)->wait(); });
}

} // namespace

void observe_collectives(std::function<void(const CollectiveCall&)> observer) {
  the_observer() = std::move(observer);
}

void run_collective(const DeviceMesh& mesh,
                    const char* operation,
                    const std::string& unit,
                    std::int64_t bytes,
                    const std::function<void()>& work) {
  if (the_observer()) {
    the_observer()({.operation = operation, .axis = mesh.axis_name(), .unit = unit, .bytes = bytes});
  }
  or_collective_failed(mesh.where(), operation, unit, work);
}

void all_gather_into_tensor(const DeviceMesh& mesh, at::Tensor output, at::Tensor input, const std::string& unit) {
  start_all_gather_into_tensor(mesh, std::move(output), std::move(input), unit)();
}

std::function<void()> start_all_gather_into_tensor(const DeviceMesh& mesh,
                                                   at::Tensor output,
                                                   at::Tensor input,
                                                   const std::string& unit) {
  if (mesh.size() == 1) {
    output.copy_(input);
    return [] {};
  }
  c10::intrusive_ptr<c10d::Work> begun;
  c10d::Backend& backend = *mesh.backend(output.device());
  run_collective(mesh, "all_gather", unit, static_cast<std::int64_t>(output.nbytes()), [&] {
    begun = backend._allgather_base(output, input);
  });
  return [begun = std::move(begun), where = mesh.where(), unit] {
    or_collective_failed(where, "all_gather", unit, [&] { begun->wait(); });
  };
}

void reduce_scatter_tensor(const DeviceMesh& mesh, at::Tensor output, at::Tensor input, const std::string& unit) {
  if (mesh.size() == 1) {
    output.copy_(input);
    return;
  }
  finish(mesh, "reduce_scatter", unit, input, [&](c10d::Backend& backend) {
    return backend._reduce_scatter_base(output, input);
  });
}

void all_reduce(const DeviceMesh& mesh, at::Tensor tensor, ReduceOp op, const std::string& unit) {
  if (mesh.size() == 1) {
    return;
  }
  c10d::AllreduceOptions options;
  options.reduceOp = op == ReduceOp::kSum   ? c10d::ReduceOp::SUM
                     : op == ReduceOp::kMin ? c10d::ReduceOp::MIN
                                            : c10d::ReduceOp::MAX;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  finish(mesh, "all_reduce", unit, tensors.front(), [&](c10d::Backend& backend) {
    return backend.allreduce(tensors, options);
  });
}

void broadcast(const DeviceMesh& mesh, at::Tensor tensor, std::int64_t root, const std::string& unit) {
  if (mesh.size() == 1) {
    return;
  }
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  finish(mesh, "broadcast", unit, tensors.front(), [&](c10d::Backend& backend) {
    return backend.broadcast(tensors, options);
  });
}

void barrier(const DeviceMesh& mesh) {
  if (mesh.size() > 1) {
    finish(mesh, "barrier", "", {}, [](c10d::Backend& backend) { return backend.barrier(); });
  }
}

std::vector<std::string> all_gather_text(const DeviceMesh& mesh, const std::string& text) {
  at::Tensor length = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  at::Tensor lengths = at::empty({mesh.size()}, at::kLong);
  all_gather_into_tensor(mesh, lengths, length);
  const std::int64_t longest = std::max<std::int64_t>(1, lengths.max().item<std::int64_t>());
  at::Tensor mine = at::zeros({longest}, at::kByte);
  std::memcpy(mine.mutable_data_ptr<std::uint8_t>(), text.data(), text.size());
  at::Tensor all = at::empty({mesh.size() * longest}, at::kByte);
  all_gather_into_tensor(mesh, all, mine);
  std::vector<std::string> texts;
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    const auto* begin = reinterpret_cast<const char*>(all.const_data_ptr<std::uint8_t>()) + rank * longest;
    texts.emplace_back(begin, static_cast<std::size_t>(lengths[rank].item<std::int64_t>()));
  }
  return texts;
}

} // namespace tieshard
