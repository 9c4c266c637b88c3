#include "tieshard/cli/demo_checks.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/base/json.h"
#include "tieshard/core/plan/read_plan.h"

namespace tieshard::cli {
namespace {

constexpr std::size_t kWindow = 10;

std::vector<std::string> tied_names(const TieRegistry& ties) {
  std::vector<std::string> names;
  for (const TieGroup& group : ties.groups()) {
    for (const TieAlias& alias : group.aliases) {
      names.push_back(concat(alias.name, " = ", group.canonical));
    }
  }
  return names;
}

void compare_tensors(const Checkpoint& source, const Checkpoint& exported, std::vector<std::string>& faults) {
  for (const StoredTensor& expected : source.tensors()) {
    const StoredTensor* got = exported.find(expected.name);
    if (got == nullptr) {
      faults.push_back(concat(expected.name, " is missing"));
    } else if (got->dtype != expected.dtype || got->shape != expected.shape) {
      faults.push_back(concat(expected.name,
                              " is ",
                              name(got->dtype),
                              " ",
                              to_string(got->shape),
                              ", expected ",
                              name(expected.dtype),
                              " ",
                              to_string(expected.shape)));
    }
  }
}

} // namespace

std::vector<double> read_losses(const std::filesystem::path& metrics) {
  std::vector<double> losses;
  std::istringstream lines(read_text_file(metrics));
  for (std::string line; std::getline(lines, line);) {
    const std::string where = concat(metrics.string(), ", line ", losses.size() + 1);
    const Json entry = parse_json(line, where);
    const auto loss = entry.find("loss");
    if (loss == entry.end() || !loss->is_number()) {
      throw InputError({.code = Code::kDataMalformed,
                        .what = "a line of the metrics has no number `loss`",
                        .where = where,
                        .why = concat("got ", line)});
    }
    losses.push_back(loss->get<double>());
  }
  return losses;
}

LossFall loss_fall(const std::vector<double>& losses) {
  const auto mean = [](auto begin) { return std::accumulate(begin, begin + kWindow, 0.0) / kWindow; };
  return {.first = mean(losses.begin()), .last = mean(losses.end() - kWindow)};
}

std::vector<std::string> export_faults(const ResolvedModel& source, const std::filesystem::path& exported) {
  const ResolvedModel view = resolve_model(exported);
  std::vector<std::string> faults;
  compare_tensors(source.checkpoint, view.checkpoint, faults);
  for (const StoredTensor& tensor : view.checkpoint.tensors()) {
    if (view.ties.is_alias(tensor.name)) {
      faults.push_back(concat(tensor.name, " is stored beside ", view.ties.canonical(tensor.name)));
    }
  }
  if (tied_names(view.ties) != tied_names(source.ties)) {
    faults.push_back("the ties are not those of the source");
  }
  const ReadPlan reads = build_read_plan(view.checkpoint, ShardPlan::build(view.table, view.ties, 1), 0);
  for (const std::string& unused : reads.unused) {
    faults.push_back(concat(unused, " is used by no parameter"));
  }
  return faults;
}

} // namespace tieshard::cli
