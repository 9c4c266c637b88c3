#include "tieshard/runtime/optim/bf16_options.h"

#include <functional>
#include <numeric>
#include <string_view>

#include "tieshard/core/optim/element_updates.h"

namespace tieshard {
namespace {

/// The same on every machine, unlike std::hash.
std::uint64_t key_of(std::string_view name) {
  std::uint64_t key = 0;
  for (const char letter : name) {
    key = mix(key, static_cast<unsigned char>(letter));
  }
  return key;
}

} // namespace

ElementPlacements element_placements(const FsdpState& state) {
  ElementPlacements placements;
  for (const FsdpParam* parameter : state.managed()) {
    const ShardedParameter& spec = parameter->spec();
    ElementPlacement placement{.key = key_of(spec.fqn), .run = 1, .stride = 1};
    if (!parameter->replicated()) {
      const ChunkRange range = state.plan().range(spec, state.mesh().rank());
      const std::int64_t inner = std::accumulate(
          spec.shape.begin() + spec.dim + 1, spec.shape.end(), std::int64_t{1}, std::multiplies<std::int64_t>());
      placement.run = range.size * inner;
      placement.stride = spec.shape[static_cast<std::size_t>(spec.dim)] * inner;
      placement.offset = range.offset * inner;
    }
    placements.emplace(parameter->parameter().unsafeGetTensorImpl(), placement);
  }
  return placements;
}

} // namespace tieshard
