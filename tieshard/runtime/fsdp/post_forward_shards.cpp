#include "tieshard/runtime/fsdp/post_forward_shards.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/runtime/mesh/collectives.h"

namespace tieshard {
namespace {

std::int64_t bytes_of(const std::vector<FsdpParam>& parameters) {
  std::int64_t total = 0;
  for (const FsdpParam& parameter : parameters) {
    const at::Tensor& whole = parameter.whole_tensor();
    total += parameter.whole() ? 0 : whole.numel() * static_cast<std::int64_t>(whole.element_size());
  }
  return total;
}

/// Visits each run of bytes that is both in a parameter and in [begin, begin + count) of the row of all: the run
/// inside the parameter's whole tensor, and where in the window it lies. Bytes, since a unit may have several dtypes.
void visit(const std::vector<FsdpParam>& parameters,
           std::int64_t begin,
           std::int64_t count,
           const std::function<void(const at::Tensor& run, std::int64_t offset)>& use) {
  std::int64_t start = 0;
  for (const FsdpParam& parameter : parameters) {
    if (parameter.whole()) {
      continue;
    }
    const at::Tensor bytes = parameter.whole_tensor().view({-1}).view(at::kByte);
    const std::int64_t from = std::max(start, begin);
    const std::int64_t to = std::min(start + bytes.numel(), begin + count);
    if (from < to) {
      use(bytes.narrow(0, from - start, to - from), from - begin);
    }
    start += bytes.numel();
  }
}

} // namespace

PostForwardShards::PostForwardShards(DeviceMesh neighbours) : neighbours_(std::move(neighbours)) {}

void PostForwardShards::keep(const std::vector<FsdpParam>& parameters) {
  const std::int64_t size = (bytes_of(parameters) + neighbours_.size() - 1) / neighbours_.size();
  if (size == 0) {
    return;
  }
  part_ = at::zeros({size}, parameters.front().whole_tensor().options().dtype(at::kByte).requires_grad(false));
  visit(parameters, neighbours_.rank() * size, size, [&](const at::Tensor& run, std::int64_t offset) {
    part_.narrow(0, offset, run.numel()).copy_(run);
  });
}

void PostForwardShards::gather_into(std::vector<FsdpParam>& parameters, const std::string& unit) const {
  const at::Tensor all = at::empty({part_.numel() * neighbours_.size()}, part_.options());
  all_gather_into_tensor(neighbours_, all, part_, unit);
  visit(parameters, 0, all.numel(), [&](at::Tensor run, std::int64_t offset) {
    run.copy_(all.narrow(0, offset, run.numel()));
  });
}

} // namespace tieshard
