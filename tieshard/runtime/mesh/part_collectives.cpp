#include "tieshard/runtime/mesh/part_collectives.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include <ATen/ATen.h>

#include "tieshard/core/shm/shm_regions.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/shm_backend.h"

namespace tieshard {
namespace {

/// A part is contiguous but for one dimension, the one that the tensor was cut on.
Region region_of(const at::Tensor& part) {
  if (part.numel() == 0) {
    return {};
  }
  const auto element = static_cast<std::size_t>(part.element_size());
  std::int64_t run = 1; // elements that lie together
  std::int64_t dim = part.dim() - 1;
  for (; dim >= 0 && (part.size(dim) == 1 || part.stride(dim) == run); --dim) {
    run *= part.size(dim);
  }
  const std::int64_t rows = part.numel() / run;
  return {.data = static_cast<std::byte*>(part.mutable_data_ptr()),
          .rows = static_cast<std::size_t>(rows),
          .row_bytes = static_cast<std::size_t>(run) * element,
          .stride = static_cast<std::size_t>(dim < 0 ? run : part.stride(dim)) * element};
}

std::vector<Part> regions_by_rank(const std::vector<CutTensor>& tensors, std::int64_t ranks) {
  std::vector<Part> parts(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    for (const CutTensor& tensor : tensors) {
      parts[rank].push_back(region_of(tensor.parts[rank]));
    }
  }
  return parts;
}

Part regions_of_shards(const std::vector<CutTensor>& tensors) {
  Part part;
  for (const CutTensor& tensor : tensors) {
    part.push_back(region_of(tensor.shard));
  }
  return part;
}

std::int64_t bytes_of_parts(const std::vector<CutTensor>& tensors) {
  std::size_t bytes = 0;
  for (const CutTensor& tensor : tensors) {
    for (const at::Tensor& part : tensor.parts) {
      bytes += part.nbytes();
    }
  }
  return static_cast<std::int64_t>(bytes);
}

/// Elements of the largest part of any rank, by tensor: what each rank has in a packed buffer.
std::int64_t packed_numel(const CutTensor& tensor) {
  std::int64_t most = 0;
  for (const at::Tensor& part : tensor.parts) {
    most = std::max(most, part.numel());
  }
  return most;
}

std::int64_t packed_numel(const std::vector<CutTensor>& tensors) {
  std::int64_t total = 0;
  for (const CutTensor& tensor : tensors) {
    total += packed_numel(tensor);
  }
  return total;
}

/// Calls action(tensor, its place in `row`) for every tensor. All are of the row's dtype.
template <typename Action>
void over_packed(const std::vector<CutTensor>& tensors, const at::Tensor& row, const Action& action) {
  std::int64_t offset = 0;
  for (const CutTensor& tensor : tensors) {
    action(tensor, row.narrow(0, offset, packed_numel(tensor)));
    offset += packed_numel(tensor);
  }
}

/// The same in a row of bytes, for tensors of several dtypes: each keeps its own, and begins where it is aligned.
/// @returns the bytes of the row; without a row that is all
template <typename Action>
std::int64_t over_packed_bytes(const std::vector<CutTensor>& tensors, const at::Tensor& row, const Action& action) {
  std::int64_t offset = 0;
  for (const CutTensor& tensor : tensors) {
    const auto element = static_cast<std::int64_t>(tensor.shard.element_size());
    offset = (offset + element - 1) / element * element;
    const std::int64_t bytes = packed_numel(tensor) * element;
    if (row.defined()) {
      action(tensor, row.narrow(0, offset, bytes).view(tensor.shard.scalar_type()));
    }
    offset += bytes;
  }
  constexpr std::int64_t kWidest = 16; // so that every rank's row is aligned
  return (offset + kWidest - 1) / kWidest * kWidest;
}

std::int64_t packed_bytes(const std::vector<CutTensor>& tensors) {
  return over_packed_bytes(tensors, {}, [](const CutTensor&, const at::Tensor&) {});
}

at::Tensor front(const at::Tensor& place, const at::Tensor& shape_of) {
  return place.narrow(0, 0, shape_of.numel()).view(shape_of.sizes());
}

/// The memory that the ranks share, where the tensors lie in it or beside it; null on one rank and where they do not.
ShmGroup* shm_group_of(const DeviceMesh& mesh, const std::vector<CutTensor>& tensors) {
  if (mesh.size() == 1 || tensors.empty()) {
    return nullptr;
  }
  const at::Device device = tensors.front().shard.device();
  return device.is_cpu() ? shm_group(*mesh.backend(device)) : nullptr;
}

std::function<void()> start_gather_packed(const DeviceMesh& mesh,
                                          const std::vector<CutTensor>& tensors,
                                          const std::string& unit) {
  const std::int64_t total = packed_bytes(tensors);
  const at::TensorOptions options = tensors.front().shard.options().dtype(at::kByte);
  const at::Tensor mine = at::empty({total}, options);
  over_packed_bytes(tensors, mine, [](const CutTensor& tensor, const at::Tensor& place) {
    front(place, tensor.shard).copy_(tensor.shard);
  });
  const at::Tensor all = at::empty({mesh.size(), total}, options);
  return [wait = start_all_gather_into_tensor(mesh, all.view({-1}), mine, unit), all, mine, tensors] {
    wait();
    for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
      over_packed_bytes(tensors, all[rank], [rank](const CutTensor& tensor, const at::Tensor& place) {
        const at::Tensor& part = tensor.parts[static_cast<std::size_t>(rank)];
        part.copy_(front(place, part));
      });
    }
  };
}

void reduce_packed(const DeviceMesh& mesh, const std::vector<CutTensor>& tensors, const std::string& unit) {
  const std::int64_t total = packed_numel(tensors);
  const at::Tensor input = at::zeros({mesh.size(), total}, tensors.front().shard.options());
  for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
    over_packed(tensors, input[rank], [rank](const CutTensor& tensor, const at::Tensor& place) {
      const at::Tensor& part = tensor.parts[static_cast<std::size_t>(rank)];
      front(place, part).copy_(part);
    });
  }
  const at::Tensor output = at::empty({total}, input.options());
  reduce_scatter_tensor(mesh, output, input.view({-1}), unit);
  over_packed(tensors, output, [](const CutTensor& tensor, const at::Tensor& place) {
    at::Tensor(tensor.shard).copy_(front(place, tensor.shard));
  });
}

} // namespace

void all_gather_parts(const DeviceMesh& mesh, const std::vector<CutTensor>& tensors, const std::string& unit) {
  start_all_gather_parts(mesh, tensors, unit)();
}

std::function<void()> start_all_gather_parts(const DeviceMesh& mesh,
                                             const std::vector<CutTensor>& tensors,
                                             const std::string& unit) {
  ShmGroup* const group = shm_group_of(mesh, tensors);
  if (!tensors.empty() && mesh.size() > 1 && group == nullptr) {
    return start_gather_packed(mesh, tensors, unit);
  }
  if (mesh.size() == 1) {
    for (const CutTensor& tensor : tensors) {
      at::Tensor(tensor.parts.front()).copy_(tensor.shard);
    }
  } else if (!tensors.empty()) {
    run_collective(mesh, "all_gather", unit, bytes_of_parts(tensors), [&] {
      all_gather_regions(*group, regions_by_rank(tensors, mesh.size()), regions_of_shards(tensors));
    });
  }
  return [] {};
}

void reduce_scatter_parts(const DeviceMesh& mesh, const std::vector<CutTensor>& tensors, const std::string& unit) {
  if (tensors.empty()) {
    return;
  }
  if (mesh.size() == 1) {
    for (const CutTensor& tensor : tensors) {
      at::Tensor(tensor.shard).copy_(tensor.parts.front());
    }
    return;
  }
  if (ShmGroup* const group = shm_group_of(mesh, tensors)) {
    run_collective(mesh, "reduce_scatter", unit, bytes_of_parts(tensors), [&] {
      reduce_scatter_regions(*group,
                             regions_of_shards(tensors),
                             regions_by_rank(tensors, mesh.size()),
                             shm_dtype(tensors.front().parts.front()),
                             shm_dtype(tensors.front().shard));
    });
    return;
  }
  reduce_packed(mesh, tensors, unit);
}

} // namespace tieshard
