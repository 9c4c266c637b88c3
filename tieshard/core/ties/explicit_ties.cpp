#include "tieshard/core/ties/explicit_ties.h"

#include <unordered_set>
#include <vector>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

using Ties = std::map<std::string, std::string>;

[[noreturn]] void refuse_cycle(const Ties& ties, const std::string& alias) {
  std::string chain = alias;
  for (std::string_view name = ties.at(alias); name != alias; name = ties.at(std::string(name))) {
    chain += concat(" -> ", name);
  }
  throw InputError({.code = Code::kTieCycle,
                    .what = "declared ties form a cycle",
                    .where = concat(chain, " -> ", alias),
                    .why = "expected a chain that ends at a name without an entry of its own",
                    .fix = "take the entry of the canonical name out of the map"});
}

} // namespace

void require_parameter(bool is_parameter, const std::string& asked, const std::string& where) {
  if (!is_parameter) {
    throw InputError({.code = Code::kTieUnknownName,
                      .what = "a declared tie names no parameter",
                      .where = where,
                      .why = concat("no parameter is called ", asked),
                      .fix = "write full dotted parameter names"});
  }
}

std::map<std::string_view, std::string_view> ends_of_chains(const Ties& explicit_ties, const ParameterTable& table) {
  if (explicit_ties.empty()) {
    return {};
  }
  std::unordered_set<std::string_view> known;
  for (const ParameterInfo& info : table) {
    known.insert(info.fqn);
  }
  std::map<std::string_view, std::string_view> ends;
  for (const auto& [alias, target] : explicit_ties) {
    for (const std::string& asked : {alias, target}) {
      require_parameter(known.contains(asked), asked, concat(alias, " -> ", target));
    }
  }
  for (const auto& [alias, target] : explicit_ties) {
    std::vector<std::string_view> passed;
    std::unordered_set<std::string_view> seen;
    std::string_view end = alias;
    for (auto link = explicit_ties.find(alias); link != explicit_ties.end();) {
      if (const auto known_end = ends.find(link->first); known_end != ends.end()) {
        end = known_end->second;
        break;
      }
      if (!seen.insert(link->first).second) {
        refuse_cycle(explicit_ties, link->first);
      }
      passed.push_back(link->first);
      end = link->second;
      link = explicit_ties.find(link->second);
    }
    for (const std::string_view name : passed) {
      ends.emplace(name, end);
    }
  }
  return ends;
}

} // namespace tieshard
