#include "tieshard/core/families/wrapper_parts.h"

#include <algorithm>
#include <array>

namespace tieshard {
namespace {

constexpr std::array<std::string_view, 7> kWrapperParts = {
    "module",                     // DistributedDataParallel, DataParallel, DeepSpeed
    "_orig_mod",                  // torch.compile
    "_fsdp_wrapped_module",       // FSDP1
    "_fpw_module",                // fairscale and the first FSDP1
    "_checkpoint_wrapped_module", // activation checkpointing
    "_forward_module",            // Lightning Fabric
    "base_layer",                 // PEFT, around a layer that has an adapter
};

} // namespace

UnwrappedName unwrap(std::string_view name, const ModelNames& model) {
  UnwrappedName result;
  std::size_t begin = 0;
  bool follows_wrapper = false;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', begin)) {
    const std::string_view part = name.substr(begin, dot - begin);
    const std::string_view with_dot = name.substr(begin, dot + 1 - begin);
    begin = dot + 1;
    if (std::ranges::find(kWrapperParts, part) == kWrapperParts.end() || model.has_part(part)) {
      result.name += with_dot;
      follows_wrapper = false;
    } else if (follows_wrapper) {
      result.wrapped.back().parts += with_dot;
    } else {
      result.wrapped.push_back({.module = result.name, .parts = std::string(with_dot)});
      follows_wrapper = true;
    }
  }
  result.name += name.substr(begin);
  return result;
}

} // namespace tieshard
