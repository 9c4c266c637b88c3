#include "tieshard/core/adapters/module_pattern.h"

#include <algorithm>
#include <charconv>
#include <regex>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

std::vector<std::string> parts_of(const std::string& module) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= module.size()) {
    const std::size_t dot = std::min(module.find('.', begin), module.size());
    parts.push_back(module.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return parts;
}

/// -1 for what is no number.
long number_of(const std::string& part) {
  long number = -1;
  const char* const end = part.data() + part.size();
  const auto parsed = std::from_chars(part.data(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end && number >= 0 ? number : -1;
}

} // namespace

bool ends_with_name(std::string_view module, std::string_view name) {
  return module == name ||
         (module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
}

bool matches_whole(const std::string& regex, const std::string& text) {
  try {
    return std::regex_match(text, std::regex(regex));
  } catch (const std::regex_error& error) {
    throw InputError({.code = Code::kAdapterConfig,
                      .what = "a field of an adapter's configuration cannot be honoured",
                      .where = concat("regular expression \"", regex, "\""),
                      .why = error.what(),
                      .fix = "write it as ECMAScript reads it, or list the names of the modules"});
  }
}

bool matches(const ModulePattern& pattern, const std::string& module) {
  if (!pattern.regex.empty()) {
    return matches_whole(pattern.regex, module);
  }
  return std::ranges::any_of(pattern.names,
                             [&module](const std::string& name) { return ends_with_name(module, name); });
}

long layer_index(const std::string& module, const std::string& container) {
  const std::vector<std::string> parts = parts_of(module);
  const std::size_t first = container.empty() ? 2 : 1; // PEFT wants one more part in front where none is named
  for (std::size_t at = first; at + 1 < parts.size(); ++at) {
    const long number = number_of(parts[at]);
    if (number >= 0 && (container.empty() || parts[at - 1] == container)) {
      return number;
    }
  }
  return -1;
}

} // namespace tieshard
