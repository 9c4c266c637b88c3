#include "tieshard/runtime/state/kept_encoding.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include <ATen/ATen.h>

#include "tieshard/core/io/reader.h"
#include "tieshard/core/plan/mxfp4_source.h"
#include "tieshard/core/plan/read_plan.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard {
namespace {

constexpr std::int64_t kElementsAtOnce = 4 << 20;

SliceRead read_of(const ShardedParameter& parameter, const WeightSource& source) {
  SliceRead read;
  read.fqn = parameter.fqn;
  read.stored_name = source.values->stored_name;
  read.file = source.values->file;
  read.offset = source.values->offset;
  read.stored_dtype = source.values->dtype;
  read.encoding = source.encoding;
  read.stored_shape = source.values->shape;
  read.shape = parameter.shape;
  read.dim = parameter.dim;
  read.scale = ScaleRead{.stored_name = source.scales->stored_name,
                         .file = source.scales->file,
                         .offset = source.scales->offset,
                         .dtype = source.scales->dtype,
                         .shape = source.scales->shape};
  return read;
}

/// Decodes this rank's slice again, a few indices of the sharded dim at a time, and compares it with the shard.
bool holds_source(const Checkpoint& source, const FsdpParam& parameter, const ChunkRange& held, SliceRead read) {
  const at::Tensor& shard = parameter.shard();
  const auto dim = static_cast<std::int64_t>(parameter.spec().dim);
  if (shard.numel() == 0) {
    return true;
  }
  const std::int64_t indices = std::max<std::int64_t>(1, kElementsAtOnce / (shard.numel() / held.size));
  for (std::int64_t first = 0; first < held.size; first += indices) {
    const at::Tensor here =
        shard.detach().narrow(dim, first, std::min(indices, held.size - first)).to(at::kCPU).contiguous();
    const at::Tensor stored = at::empty_like(here);
    read.chunk = {.offset = held.offset + first, .size = here.size(dim)};
    read.local_shape = Shape(here.sizes().begin(), here.sizes().end());
    const ReadTarget target{.data = static_cast<std::byte*>(stored.mutable_data_ptr()),
                            .dtype = from_torch(stored.scalar_type())};
    read_slices(source, std::span(&read, 1), std::span(&target, 1), {.buffer_bytes = 4 << 20});
    if (!at::equal(here, stored)) {
      return false;
    }
  }
  return true;
}

struct Candidate {
  const FsdpParam* parameter = nullptr;
  SliceRead read;
};

/// Takes every module out of which some parameter is no candidate.
void keep_whole_modules(std::set<std::string>& kept, const std::set<std::string>& others) {
  std::set<std::string> changed;
  for (const std::string& fqn : others) {
    changed.insert(module_of(fqn));
  }
  std::erase_if(kept, [&](const std::string& fqn) { return changed.contains(module_of(fqn)); });
}

} // namespace

std::string module_of(const std::string& fqn) {
  const std::size_t dot = fqn.rfind('.');
  return dot == std::string::npos ? "" : fqn.substr(0, dot);
}

std::set<std::string> unchanged_mxfp4(const FsdpState& state, const Checkpoint& source) {
  std::set<std::string> kept;
  std::set<std::string> others;
  std::vector<Candidate> candidates;
  for (const FsdpParam* const parameter : state.managed()) {
    const std::optional<WeightSource> stored = mxfp4_source(source, state.plan(), parameter->spec());
    if (!stored) {
      continue;
    }
    (parameter->trainable() ? others : kept).insert(parameter->fqn());
    candidates.push_back({parameter, read_of(parameter->spec(), *stored)});
  }
  keep_whole_modules(kept, others);
  std::string changed;
  agree(state.world(), "export: what is unchanged", [&] {
    for (const Candidate& candidate : candidates) {
      const std::string& fqn = candidate.parameter->fqn();
      const ChunkRange held = state.plan().range(candidate.parameter->spec(), state.mesh().rank());
      if (kept.contains(fqn) && !holds_source(source, *candidate.parameter, held, candidate.read)) {
        changed += concat(fqn, "\n");
      }
    }
  });
  if (kept.empty()) {
    return kept; // on every rank: what is trained is the same on all
  }
  others.clear();
  for (const std::string& of_rank :
       all_gather_text(state.world(), changed, CollectivePurpose::named("export: what is changed"))) {
    std::istringstream lines(of_rank);
    for (std::string fqn; lines >> fqn;) {
      others.insert(fqn);
    }
  }
  keep_whole_modules(kept, others);
  return kept;
}

} // namespace tieshard
