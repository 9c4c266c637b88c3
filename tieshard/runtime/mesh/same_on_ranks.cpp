#include "tieshard/runtime/mesh/same_on_ranks.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/shm/shm_layout.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/mesh/roll_call.h"

namespace tieshard {
namespace {

/// Of the names that differ.
constexpr std::size_t kShown = 4;

std::string to_json(const std::vector<NamedText>& texts) {
  nlohmann::json list = nlohmann::json::array();
  for (const NamedText& text : texts) {
    list.push_back({text.name, text.value});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Names in the order in which they first stand in any rank's list, and the value of each on each rank.
struct Compared {
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> values; ///< by rank

  explicit Compared(const std::vector<std::string>& lists) {
    std::map<std::string, std::size_t> known;
    for (const std::string& list : lists) {
      std::map<std::string, std::string>& of_rank = values.emplace_back();
      for (const nlohmann::json& pair : nlohmann::json::parse(list)) {
        const auto name = pair.at(0).get<std::string>();
        of_rank.emplace(name, pair.at(1).get<std::string>());
        if (known.emplace(name, names.size()).second) {
          names.push_back(name);
        }
      }
    }
  }

  /// "1 on rank 0, 2 on ranks 1 and 2", or nothing where all have the same.
  std::string difference(const std::string& name) const {
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> groups; // a value and who has it
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      const auto found = values[rank].find(name);
      const std::string value = found == values[rank].end() ? "not given" : found->second;
      auto group = std::ranges::find(groups, value, [](const auto& one) { return one.first; });
      if (group == groups.end()) {
        group = groups.insert(group, {value, {}});
      }
      group->second.push_back(static_cast<std::int64_t>(rank));
    }
    std::string text;
    for (const auto& [value, ranks] : groups) {
      text += concat(text.empty() ? "" : ", ", value, " on ", ranks_text(ranks));
    }
    return groups.size() == 1 ? "" : text;
  }
};

} // namespace

std::string difference_over_ranks(const DeviceMesh& mesh, std::string_view stage, const std::vector<NamedText>& mine) {
  if (mesh.size() == 1) {
    return {};
  }
  const CollectivePurpose purpose = CollectivePurpose::named(concat("comparing \"", stage, "\""));
  const std::string list = to_json(mine);
  const std::string hash = std::to_string(CallPurpose::of(list).hash); // lists can be long, and mostly are equal
  const std::vector<std::string> hashes = all_gather_text(mesh, hash, purpose);
  if (std::ranges::all_of(hashes, [&](const std::string& other) { return other == hashes.front(); })) {
    return {};
  }
  const Compared compared(all_gather_text(mesh, list, purpose));
  std::string text;
  std::size_t different = 0;
  for (const std::string& name : compared.names) {
    const std::string difference = compared.difference(name);
    if (!difference.empty() && ++different <= kShown) {
      text += concat(text.empty() ? "" : "; ", name, " is ", difference);
    }
  }
  if (text.empty()) {
    return "the order is another";
  }
  return different > kShown ? concat(text, "; and ", different - kShown, " more") : text;
}

void require_equal_on_ranks(const DeviceMesh& mesh,
                            std::string_view stage,
                            const std::vector<NamedText>& mine,
                            Diagnostic refusal) {
  const std::string difference = difference_over_ranks(mesh, stage, mine);
  if (difference.empty()) {
    return;
  }
  refusal.where = mesh.where();
  refusal.why = concat("expected the same on every rank, got: ", difference);
  throw InputError(std::move(refusal));
}

} // namespace tieshard
