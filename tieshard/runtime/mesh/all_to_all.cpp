#include "tieshard/runtime/mesh/all_to_all.h"

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/shm_backend.h"

namespace tieshard {
namespace {

/// Parts of all ranks, one after the other.
struct Packed {
  at::Tensor bytes;
  std::vector<std::int64_t> of_rank;
  Part whole;
};

Packed packed_for(std::span<const Part> parts) {
  Packed packed;
  std::int64_t total = 0;
  for (const Part& part : parts) {
    packed.of_rank.push_back(static_cast<std::int64_t>(bytes_of(part)));
    total += packed.of_rank.back();
  }
  packed.bytes = at::empty({total}, at::kByte);
  const auto bytes = static_cast<std::size_t>(total);
  packed.whole = {{.data = static_cast<std::byte*>(packed.bytes.mutable_data_ptr()),
                   .rows = 1,
                   .row_bytes = bytes,
                   .stride = bytes}};
  return packed;
}

Part joined(std::span<const Part> parts) {
  Part all;
  for (const Part& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void exchange_packed(c10d::Backend& backend, std::span<const Part> received, std::span<const Part> sent) {
  Packed input = packed_for(sent);
  Packed output = packed_for(received);
  copy_part(input.whole, joined(sent));
  backend.alltoall_base(output.bytes, input.bytes, output.of_rank, input.of_rank)->wait();
  copy_part(joined(received), output.whole);
}

} // namespace

void all_to_all(const DeviceMesh& mesh,
                std::span<const Part> received,
                std::span<const Part> sent,
                std::size_t most,
                const CollectivePurpose& purpose) {
  if (mesh.size() == 1) {
    copy_part(received.front(), sent.front());
    return;
  }
  run_collective(mesh, "all_to_all", purpose, static_cast<std::int64_t>(most), [&] {
    c10d::Backend& backend = *mesh.backend();
    if (ShmGroup* const group = shm_group(backend)) {
      all_to_all_regions(*group, received, sent, most);
    } else {
      exchange_packed(backend, received, sent);
    }
  });
}

} // namespace tieshard
