#include "tieshard/cli/closest_names.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tieshard::cli {
namespace {

// Levenshtein distance, one row at a time.
std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

} // namespace

std::vector<std::string> closest_names(const std::string& asked,
                                       std::span<const std::string> names,
                                       std::size_t count) {
  struct Candidate {
    std::size_t distance;
    const std::string* name;
  };
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    candidates.push_back({name.find(asked) != std::string::npos ? 0 : edits(asked, name), &name});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.distance, a.name) < std::tie(b.distance, b.name); // by place in `names` where equal
  });
  std::vector<std::string> closest;
  for (std::size_t i = 0; i < std::min(count, candidates.size()); ++i) {
    closest.push_back(*candidates[i].name);
  }
  return closest;
}

} // namespace tieshard::cli
