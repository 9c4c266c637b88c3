#include "tieshard/cli/name_pattern.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

bool is_number(std::string_view part) {
  // Longer ones are no layer or expert numbers, and would not fit.
  return !part.empty() && part.size() <= 9 && part.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    parts.push_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  parts.push_back(name.substr(begin));
  return parts;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string name;
  for (const std::string& part : parts) {
    name += concat(name.empty() ? "" : ".", part);
  }
  return name;
}

std::string skeleton(std::vector<std::string> parts) {
  for (std::string& part : parts) {
    if (is_number(part)) {
      part = "#";
    }
  }
  return joined(parts);
}

std::string numbers_text(const std::set<int>& numbers) {
  const int first = *numbers.begin();
  const int last = *numbers.rbegin();
  if (numbers.size() == 1) {
    return std::to_string(first);
  }
  if (static_cast<std::size_t>(last - first) + 1 == numbers.size()) {
    return concat(first, "-", last);
  }
  // Every other layer, or a layer that was left out: the first two and the last tell which.
  const std::string start = concat(first, ",", *std::next(numbers.begin()));
  return numbers.size() == 2 ? start : concat(start, numbers.size() == 3 ? "," : ",..,", last);
}

std::string pattern_of(std::span<const std::string> names, const std::vector<std::size_t>& members) {
  std::vector<std::string> pattern = parts_of(names[members.front()]);
  std::vector<std::set<int>> numbers(pattern.size());
  for (const std::size_t member : members) {
    const std::vector<std::string> parts = parts_of(names[member]);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (is_number(parts[i])) {
        numbers[i].insert(std::stoi(parts[i]));
      }
    }
  }
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (!numbers[i].empty()) {
      pattern[i] = numbers_text(numbers[i]);
    }
  }
  return joined(pattern);
}

} // namespace

std::vector<NameGroup> fold_names(std::span<const std::string> names,
                                  const std::function<std::string(std::size_t)>& kind) {
  std::vector<NameGroup> groups;
  std::map<std::string, std::size_t> group_of;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string key = concat(skeleton(parts_of(names[i])), "\n", kind(i));
    const auto [found, is_new] = group_of.try_emplace(key, groups.size());
    if (is_new) {
      groups.emplace_back();
    }
    groups[found->second].members.push_back(i);
  }
  for (NameGroup& group : groups) {
    group.pattern = pattern_of(names, group.members);
  }
  return groups;
}

} // namespace tieshard::cli
