#include "tieshard/core/families/wrapper_parts.h"

#include <algorithm>

namespace tieshard {

UnwrappedName unwrap(std::string_view name, const std::function<bool(std::string_view)>& is_own) {
  UnwrappedName result;
  std::size_t begin = 0;
  bool follows_wrapper = false;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', begin)) {
    const std::string_view part = name.substr(begin, dot - begin);
    const std::string_view with_dot = name.substr(begin, dot + 1 - begin);
    begin = dot + 1;
    if (std::ranges::find(kWrapperParts, part) == kWrapperParts.end() || is_own(part)) {
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
