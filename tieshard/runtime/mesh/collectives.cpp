#include "tieshard/runtime/mesh/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/shm/shm_group.h"
#include "tieshard/runtime/mesh/shm_backend.h"

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
                          const CollectivePurpose& purpose,
                          const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    throw PeerError({.code = Code::kCollectiveFailed,
                     .what = "a collective failed, mostly because a rank is gone",
                     .where = concat(where, ", ", operation, purpose.text().empty() ? "" : " of ", purpose.text()),
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
            const CollectivePurpose& purpose,
            const at::Tensor& larger,
            const Start& start) {
  const auto bytes = larger.defined() ? static_cast<std::int64_t>(larger.nbytes()) : 0;
  c10d::Backend& backend = *mesh.backend(larger.defined() ? larger.device() : c10::kCPU);
  run_collective(mesh, operation, purpose, bytes, [&] { start(backend)->wait(); });
}

/// Stands before each text, so that no other gather is taken for one.
constexpr std::int64_t kTextMark = 0x7469'6573'6861'7264;

[[noreturn]] void refuse_other_purpose(const DeviceMesh& mesh,
                                       const CollectivePurpose& purpose,
                                       std::int64_t rank,
                                       const std::string& theirs) {
  throw PeerError({.code = Code::kCollectiveFailed,
                   .what = "a collective failed, mostly because a rank is gone",
                   .where = concat(mesh.where(), ", all_gather of ", purpose.text()),
                   .why = concat("all ranks have to make the same calls in the same order: this rank is at ",
                                 purpose.text(),
                                 ", rank ",
                                 rank,
                                 " at ",
                                 theirs),
                   .fix = "look for what the two ranks were told differently; give every rank the same command"});
}

/// The texts' lengths, in rank order. Refuses ranks that are not at the same purpose, by name.
std::vector<std::int64_t> lengths_of_all(const DeviceMesh& mesh,
                                         const std::string& text,
                                         const CollectivePurpose& purpose) {
  const CallPurpose mine = CallPurpose::of(purpose.text());
  const at::Tensor header =
      at::tensor({kTextMark, static_cast<std::int64_t>(mine.hash), static_cast<std::int64_t>(text.size())}, at::kLong);
  const at::Tensor headers = at::empty({mesh.size(), 3}, at::kLong);
  all_gather_into_tensor(mesh, headers.view({-1}), header, purpose);
  const auto of_all = headers.accessor<std::int64_t, 2>();
  std::vector<std::int64_t> lengths;
  bool same = true;
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (of_all[rank][0] != kTextMark) {
      refuse_other_purpose(mesh, purpose, rank, "another collective");
    }
    same = same && of_all[rank][1] == header[1].item<std::int64_t>();
    lengths.push_back(of_all[rank][2]);
  }
  if (!same) { // all ranks see that, and say what they are at
    constexpr auto kLength = static_cast<std::int64_t>(CallPurpose{}.text.size());
    at::Tensor name = at::zeros({kLength}, at::kByte);
    std::memcpy(name.mutable_data_ptr<std::uint8_t>(), mine.text.data(), mine.text.size());
    const at::Tensor names = at::empty({mesh.size(), kLength}, at::kByte);
    all_gather_into_tensor(mesh, names.view({-1}), name, purpose);
    for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
      if (of_all[rank][1] != header[1].item<std::int64_t>()) {
        const auto* const theirs = reinterpret_cast<const char*>(names[rank].const_data_ptr<std::uint8_t>());
        refuse_other_purpose(mesh, purpose, rank, theirs);
      }
    }
  }
  return lengths;
}

} // namespace

void observe_collectives(std::function<void(const CollectiveCall&)> observer) {
  the_observer() = std::move(observer);
}

void run_collective(const DeviceMesh& mesh,
                    const char* operation,
                    const CollectivePurpose& purpose,
                    std::int64_t bytes,
                    const std::function<void()>& work) {
  if (the_observer()) {
    the_observer()({.operation = operation, .axis = mesh.axis_name(), .purpose = purpose.text(), .bytes = bytes});
  }
  if (ShmGroup* const group = shm_group(*mesh.backend())) {
    group->set_purpose(purpose.text());
  }
  or_collective_failed(mesh.where(), operation, purpose, work);
}

void all_gather_into_tensor(const DeviceMesh& mesh,
                            at::Tensor output,
                            at::Tensor input,
                            const CollectivePurpose& purpose) {
  start_all_gather_into_tensor(mesh, std::move(output), std::move(input), purpose)();
}

std::function<void()> start_all_gather_into_tensor(const DeviceMesh& mesh,
                                                   at::Tensor output,
                                                   at::Tensor input,
                                                   const CollectivePurpose& purpose) {
  if (mesh.size() == 1) {
    output.copy_(input);
    return [] {};
  }
  c10::intrusive_ptr<c10d::Work> begun;
  c10d::Backend& backend = *mesh.backend(output.device());
  run_collective(mesh, "all_gather", purpose, static_cast<std::int64_t>(output.nbytes()), [&] {
    begun = backend._allgather_base(output, input);
  });
  return [begun = std::move(begun), where = mesh.where(), purpose] {
    or_collective_failed(where, "all_gather", purpose, [&] { begun->wait(); });
  };
}

void reduce_scatter_tensor(const DeviceMesh& mesh,
                           at::Tensor output,
                           at::Tensor input,
                           const CollectivePurpose& purpose) {
  if (mesh.size() == 1) {
    output.copy_(input);
    return;
  }
  finish(mesh, "reduce_scatter", purpose, input, [&](c10d::Backend& backend) {
    return backend._reduce_scatter_base(output, input);
  });
}

void all_reduce(const DeviceMesh& mesh, at::Tensor tensor, ReduceOp op, const CollectivePurpose& purpose) {
  if (mesh.size() == 1) {
    return;
  }
  c10d::AllreduceOptions options;
  options.reduceOp = op == ReduceOp::kSum   ? c10d::ReduceOp::SUM
                     : op == ReduceOp::kMin ? c10d::ReduceOp::MIN
                                            : c10d::ReduceOp::MAX;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  finish(mesh, "all_reduce", purpose, tensors.front(), [&](c10d::Backend& backend) {
    return backend.allreduce(tensors, options);
  });
}

void broadcast(const DeviceMesh& mesh, at::Tensor tensor, std::int64_t root, const CollectivePurpose& purpose) {
  if (mesh.size() == 1) {
    return;
  }
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  finish(mesh, "broadcast", purpose, tensors.front(), [&](c10d::Backend& backend) {
    return backend.broadcast(tensors, options);
  });
}

void barrier(const DeviceMesh& mesh, const CollectivePurpose& purpose) {
  if (mesh.size() > 1) {
    finish(mesh, "barrier", purpose, {}, [](c10d::Backend& backend) { return backend.barrier(); });
  }
}

std::vector<std::string> all_gather_text(const DeviceMesh& mesh,
                                         const std::string& text,
                                         const CollectivePurpose& purpose) {
  const std::vector<std::int64_t> lengths = lengths_of_all(mesh, text, purpose);
  const std::int64_t longest = std::max<std::int64_t>(1, std::ranges::max(lengths));
  at::Tensor mine = at::zeros({longest}, at::kByte);
  std::memcpy(mine.mutable_data_ptr<std::uint8_t>(), text.data(), text.size());
  at::Tensor all = at::empty({mesh.size() * longest}, at::kByte);
  all_gather_into_tensor(mesh, all, mine, purpose);
  const auto* const begin = reinterpret_cast<const char*>(all.const_data_ptr<std::uint8_t>());
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.emplace_back(begin + static_cast<std::int64_t>(rank) * longest, static_cast<std::size_t>(lengths[rank]));
  }
  return texts;
}

} // namespace tieshard
