#include "tieshard/core/families/prefix_rule.h"

#include <algorithm>
#include <unordered_set>

namespace tieshard {
namespace {

constexpr std::size_t kSamples = 8;       ///< missing parameters that are looked for, evenly spread
constexpr std::size_t kMostRules = 6;     ///< tried out; more only come from names without any order
constexpr std::size_t kMostOfASample = 8; ///< names that fit one sample equally well

/// The longest end that two names share, from a dot or the beginning on: "q.weight" of "a.q.weight" and "b.q.weight".
std::string_view common_end(std::string_view a, std::string_view b) {
  const std::size_t most = std::min(a.size(), b.size());
  std::size_t same = 0;
  while (same < most && a[a.size() - same - 1] == b[b.size() - same - 1]) {
    ++same;
  }
  const auto begins_part = [same](std::string_view name) {
    return name.size() == same || name[name.size() - same - 1] == '.';
  };
  std::string_view end = a.substr(a.size() - same);
  if (!begins_part(a) || !begins_part(b)) {
    const std::size_t dot = end.find('.');
    end = dot == std::string_view::npos ? std::string_view() : end.substr(dot + 1);
  }
  return end;
}

bool is_number(std::string_view part) {
  return !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
}

/// Whether all of "a.b." can have been put into names: parts of the model's own or numbers are places in it.
bool is_foreign(std::string_view parts, const ModelNames& model) {
  for (std::size_t begin = 0; begin < parts.size();) {
    const std::size_t dot = parts.find('.', begin);
    const std::string_view part = parts.substr(begin, dot - begin);
    if (is_number(part) || model.has_part(part)) {
      return false;
    }
    begin = dot + 1;
  }
  return true;
}

/// Whether most of the model's parameters stand under `prefix`: then it is the base model's.
bool is_base_prefix(std::string_view prefix, const ModelNames& model) {
  const auto under = std::ranges::count_if(
      model.table(), [prefix](const ParameterInfo& info) { return info.fqn.starts_with(prefix); });
  return 2 * static_cast<std::size_t>(under) > model.table().size();
}

std::optional<PrefixRule> rule_between(std::string_view stored, std::string_view fqn, const ModelNames& model) {
  const std::string_view end = common_end(stored, fqn);
  const bool is_whole = end.size() == fqn.size() || end.size() == stored.size();
  if (end.empty() || (!is_whole && end.find('.') == std::string_view::npos)) {
    return std::nullopt; // "weight" alone says nothing
  }
  const std::string_view from = stored.substr(0, stored.size() - end.size());
  const std::string_view to = fqn.substr(0, fqn.size() - end.size());
  if (to.empty()) {
    return PrefixRule{.from = std::string(from), .to = ""};
  }
  if (from.starts_with(to)) {
    const std::string_view inserted = from.substr(to.size());
    return is_foreign(inserted, model)
               ? std::optional(PrefixRule{.from = std::string(inserted), .to = "", .anywhere = true})
               : std::nullopt;
  }
  if (from.ends_with(to) || (!from.empty() && to.ends_with(from))) {
    return std::nullopt; // "xmodel." for "model.": the difference does not end at a dot
  }
  // "model.layers.10." for "model.layers.2." is another place of the model, and no prefix.
  const bool is_other_place = !from.empty() && !is_foreign(from, model);
  return is_other_place || !is_base_prefix(to, model)
             ? std::nullopt
             : std::optional(PrefixRule{.from = std::string(from), .to = std::string(to)});
}

/// Rules that the unknown names suggest which are most like one missing parameter.
void add_rules_for(std::string_view fqn,
                   const std::vector<UnknownName>& unknown,
                   const ModelNames& model,
                   std::vector<PrefixRule>& rules) {
  std::vector<std::string_view> closest;
  std::size_t longest = 1;
  for (const UnknownName& candidate : unknown) {
    const std::size_t length = common_end(candidate.name, fqn).size();
    if (length > longest) {
      longest = length;
      closest.clear();
    }
    if (length == longest && closest.size() < kMostOfASample) {
      closest.push_back(candidate.name);
    }
  }
  for (const std::string_view stored : closest) {
    auto rule = rule_between(stored, fqn, model);
    if (rule && std::ranges::find(rules, *rule) == rules.end()) {
      rules.push_back(*std::move(rule));
    }
  }
}

struct Yield {
  std::size_t filled = 0; ///< missing parameters that get a value
  std::size_t of_shape = 0;
};

Yield yield_of(const PrefixRule& rule,
               const std::vector<UnknownName>& unknown,
               const std::unordered_set<std::size_t>& missing,
               const ModelNames& model) {
  Yield yield;
  std::unordered_set<std::size_t> filled;
  for (const UnknownName& candidate : unknown) {
    const auto changed = rule.apply(candidate.name);
    const auto parameter = changed ? model.parameter(*changed) : std::nullopt;
    if (!parameter || !missing.contains(*parameter) || !filled.insert(*parameter).second) {
      continue;
    }
    ++yield.filled;
    const ParameterInfo& info = model.table()[*parameter];
    yield.of_shape +=
        info.fqn != *changed || info.shape == *candidate.shape ? 1 : 0; // blocks have a shape of their own
  }
  return yield;
}

} // namespace

std::optional<std::string> PrefixRule::apply(std::string_view name) const {
  if (!anywhere) {
    return name.starts_with(from) ? std::optional(to + std::string(name.substr(from.size()))) : std::nullopt;
  }
  const std::string inside = "." + from;
  std::string result(name);
  bool applies = false;
  for (std::size_t at = result.find(inside); at != std::string::npos; at = result.find(inside, at)) {
    result.erase(at + 1, from.size());
    applies = true;
  }
  return applies ? std::optional(std::move(result)) : std::nullopt;
}

std::optional<PrefixRule> find_prefix_rule(const std::vector<UnknownName>& unknown,
                                           const std::vector<std::size_t>& missing,
                                           std::size_t least,
                                           const ModelNames& model) {
  std::vector<PrefixRule> rules;
  const std::size_t step = std::max<std::size_t>(1, missing.size() / kSamples);
  for (std::size_t i = step / 2; i < missing.size(); i += step) {
    add_rules_for(model.table()[missing[i]].fqn, unknown, model, rules);
  }
  rules.resize(std::min(rules.size(), kMostRules));
  const std::unordered_set<std::size_t> wanted(missing.begin(), missing.end());
  std::optional<PrefixRule> best;
  std::size_t most = 0;
  for (PrefixRule& rule : rules) {
    const Yield yield = yield_of(rule, unknown, wanted, model);
    if (yield.filled > most && 2 * yield.of_shape >= yield.filled) {
      most = yield.filled;
      best = std::move(rule);
    }
  }
  return most >= std::max<std::size_t>(1, least) ? best : std::nullopt;
}

} // namespace tieshard
