#include "tieshard/core/optim/param_group_rules.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tieshard/core/base/comma_list.h"
#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::string_view kNoDecay = "no_decay";

InputError malformed(const std::string& text, const std::string& got) {
  return InputError({.code = Code::kBadFlag,
                     .what = "a parameter group has a form that cannot be used",
                     .where = concat("parameter group ", text),
                     .why = concat("expected no_decay or PATTERN[,PATTERN]:lr=X[,weight_decay=X], got ", got),
                     .fix = "write for example --param-groups 'norm,bias:weight_decay=0'"});
}

double number(const std::string& text, const std::string& setting, const std::string& value) {
  double parsed = 0;
  const char* const end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, parsed);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(parsed) || parsed < 0) {
    throw malformed(text, concat(setting, ", whose value is no finite number of at least 0"));
  }
  return parsed;
}

void set(ParamGroupRule& rule, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals);
  std::optional<double>* const target = key == "lr" ? &rule.lr : key == "weight_decay" ? &rule.weight_decay : nullptr;
  if (target == nullptr || equals == std::string::npos) {
    throw malformed(rule.text, concat("the setting \"", setting, "\""));
  }
  if (target->has_value()) {
    throw malformed(rule.text, concat(key, " twice"));
  }
  *target = number(rule.text, setting, setting.substr(equals + 1));
}

/// A pattern of a rule; null for no_decay's, which has none.
bool takes(const std::string* pattern, const GroupCandidate& candidate) {
  if (pattern == nullptr) {
    return candidate.dims < 2;
  }
  return std::ranges::any_of(candidate.names, [&](const std::string& name) { return matches(*pattern, name); });
}

[[noreturn]] void refuse_idle(const ParamGroupRule& rule, const std::string* pattern, const std::string& earlier) {
  const std::string wanted = pattern == nullptr ? "of fewer than two dims" : concat("matching ", *pattern);
  throw InputError({.code = Code::kUnknownParameter,
                    .what = "a parameter group has a pattern that takes no parameter",
                    .where = concat("parameter group ", rule.text),
                    .why = concat("expected a trainable parameter ",
                                  wanted,
                                  earlier.empty() ? ", got none" : ", got only such as an earlier group has taken: ",
                                  earlier),
                    .fix = earlier.empty()
                               ? "`tieshard inspect` lists the names; leave the pattern out if there is none"
                               : "put the narrower group first, or leave the pattern out"});
}

} // namespace

ParamGroupRule parse_param_group_rule(const std::string& text) {
  ParamGroupRule rule{.text = text, .patterns = {}};
  if (text == kNoDecay) {
    rule.weight_decay = 0;
    return rule;
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) {
    throw malformed(text, "no colon");
  }
  rule.patterns = split_at_commas(text.substr(0, colon));
  if (std::ranges::any_of(rule.patterns, [](const std::string& pattern) { return pattern.empty(); })) {
    throw malformed(text, "an empty pattern");
  }
  for (const std::string& setting : split_at_commas(text.substr(colon + 1))) {
    set(rule, setting);
  }
  return rule;
}

bool matches(std::string_view pattern, std::string_view fqn) {
  std::size_t from = 0; // the parts between stars, one behind the other, each at the earliest place it has
  while (true) {
    const std::size_t star = pattern.find('*');
    const std::size_t at = fqn.find(pattern.substr(0, star), from);
    if (at == std::string_view::npos) {
      return false;
    }
    if (star == std::string_view::npos) {
      return true;
    }
    from = at + star;
    pattern.remove_prefix(star + 1);
  }
}

std::vector<std::size_t> assign_param_groups(const std::vector<ParamGroupRule>& rules,
                                             const std::vector<GroupCandidate>& candidates) {
  std::vector<std::size_t> group(candidates.size(), rules.size());
  for (std::size_t index = 0; index < rules.size(); ++index) {
    const ParamGroupRule& rule = rules[index];
    std::vector<const std::string*> patterns;
    patterns.reserve(rule.patterns.size() + 1);
    for (const std::string& pattern : rule.patterns) {
      patterns.push_back(&pattern);
    }
    if (patterns.empty()) {
      patterns.push_back(nullptr);
    }
    for (const std::string* pattern : patterns) {
      bool idle = true;
      std::string earlier;
      for (std::size_t parameter = 0; parameter < candidates.size(); ++parameter) {
        if (!takes(pattern, candidates[parameter])) {
          continue;
        }
        if (group[parameter] == rules.size()) {
          group[parameter] = index;
        }
        idle = idle && group[parameter] != index;
        earlier = group[parameter] == index ? earlier : rules[group[parameter]].text;
      }
      if (idle) {
        refuse_idle(rule, pattern, earlier);
      }
    }
  }
  return group;
}

} // namespace tieshard
