#include "tieshard/runtime/fsdp/unit_rounds.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/engine.h>

namespace tieshard {

void BackwardRound::add(bool has_node) {
  nodes_ += has_node ? 1 : 0;
  waits_for_end_ = waits_for_end_ || !has_node;
}

bool BackwardRound::reached() {
  const int pass = torch::autograd::get_current_graph_task_id();
  if (std::exchange(pass_, pass) != pass) {
    reached_ = 0;
  }
  return ++reached_ >= nodes_ && !waits_for_end_;
}

UnitRounds::UnitRounds(const torch::nn::Module& root,
                       const std::vector<UnitModule>& units,
                       const std::vector<std::unique_ptr<FsdpParamGroup>>& groups) {
  std::unordered_map<const torch::nn::Module*, std::string> name_of;
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    name_of.emplace(item.value().get(), item.key());
  }
  for (std::size_t index = 0; index < units.size(); ++index) {
    FsdpParamGroup& group = *groups[index];
    Round& round = rounds_[&group];
    round.backward = std::make_shared<BackwardRound>(group);
    std::vector<torch::nn::Module*> modules = units[index].with;
    modules.insert(modules.begin(), units[index].module);
    for (const torch::nn::Module* module : modules) {
      const auto named = name_of.find(module);
      round.members.push_back({module, named == name_of.end() ? units[index].name : named->second});
      group_of_.emplace(module, &group);
    }
  }
}

FsdpParamGroup* UnitRounds::find(const torch::nn::Module& module) const {
  const auto found = group_of_.find(&module);
  return found == group_of_.end() ? nullptr : found->second;
}

bool UnitRounds::enter(const torch::nn::Module& module) {
  FsdpParamGroup& group = *group_of_.at(&module);
  Round& round = rounds_.at(&group);
  const bool begins = round.entered.empty();
  if (begins) {
    round.backward = std::make_shared<BackwardRound>(group);
    round.has_backward = false;
  }
  round.entered.insert(&module);
  return begins;
}

const std::shared_ptr<BackwardRound>& UnitRounds::backward(const FsdpParamGroup& group) const {
  return rounds_.at(&group).backward;
}

bool UnitRounds::leave(const torch::nn::Module& module, bool has_backward) {
  const FsdpParamGroup& group = *group_of_.at(&module);
  Round& round = rounds_.at(&group);
  round.has_backward = round.has_backward || has_backward;
  round.left.insert(&module);
  if (round.left.size() < round.members.size()) {
    return false;
  }
  abandon(group);
  return true;
}

bool UnitRounds::has_backward(const FsdpParamGroup& group) const {
  return rounds_.at(&group).has_backward;
}

bool UnitRounds::waits(const FsdpParamGroup& group) const {
  const Round& round = rounds_.at(&group);
  return !round.left.empty() && round.left.size() == round.entered.size();
}

bool UnitRounds::is_idle(const FsdpParamGroup& group, const std::unordered_set<const torch::nn::Module*>& ran) const {
  return std::ranges::none_of(rounds_.at(&group).members,
                              [&](const Member& member) { return ran.contains(member.module); });
}

void UnitRounds::abandon(const FsdpParamGroup& group) {
  Round& round = rounds_.at(&group);
  round.entered.clear();
  round.left.clear();
}

std::vector<std::string> UnitRounds::missing(const FsdpParamGroup& group,
                                             const std::unordered_set<const torch::nn::Module*>& ran) const {
  std::vector<std::string> names;
  for (const Member& member : rounds_.at(&group).members) {
    if (!ran.contains(member.module)) {
      names.push_back(member.name);
    }
  }
  return names;
}

} // namespace tieshard
