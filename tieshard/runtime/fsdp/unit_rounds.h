// tieshard/runtime/fsdp/unit_rounds.h
//
// Where a unit's forward begins and ends when several modules make up the unit, and when its backward has.
//
// Flow:   fsdp_state -> [this] <- post_backward_node
// Source: FSDP2's fully_shard(list of modules): gathered before the first of them, freed after all of them.
//
// A round is one run of each module of a unit, in any order. A unit of one module has a round in each of its runs.

#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/nn/module.h>

#include "tieshard/runtime/fsdp/fsdp_param_group.h"
#include "tieshard/runtime/models/language_model.h"

namespace tieshard {

/// The backward side of a round: the unit is finished when all the places that were put before its modules are reached.
class BackwardRound {
 public:
  explicit BackwardRound(FsdpParamGroup& group) : group_(group) {}

  FsdpParamGroup& group() const noexcept {
    return group_;
  }

  /// A module with a backward ran. @param has_node  a node before it says when that is over; if it has none the unit is
  /// finished at the end of the pass
  void add(bool has_node);

  /// A node was reached in the backward pass that runs now. @returns whether it was the last of them
  bool reached();

 private:
  FsdpParamGroup& group_;
  int nodes_ = 0;
  bool waits_for_end_ = false;
  int pass_ = -1; ///< as autograd numbers it; a graph may be walked several times
  int reached_ = 0;
};

/// The modules of all units, and the rounds that have begun.
class UnitRounds {
 public:
  /// @param groups  of `units`, in the same order
  UnitRounds(const torch::nn::Module& root,
             const std::vector<UnitModule>& units,
             const std::vector<std::unique_ptr<FsdpParamGroup>>& groups);

  /// The unit that `module` is one of, or null.
  FsdpParamGroup* find(const torch::nn::Module& module) const;

  /// @returns whether a round begins with this run
  bool enter(const torch::nn::Module& module);

  /// The backward side of the round that `module`'s unit is in.
  const std::shared_ptr<BackwardRound>& backward(const FsdpParamGroup& group) const;

  /// @param has_backward  of this run
  /// @returns whether the round is over
  bool leave(const torch::nn::Module& module, bool has_backward);

  /// Whether any run of the unit's last round has a backward.
  bool has_backward(const FsdpParamGroup& group) const;

  /// Whether a round has begun of which no module runs now: others of the unit are still to come.
  bool waits(const FsdpParamGroup& group) const;

  /// Whether none of the unit's modules is in `ran`.
  bool is_idle(const FsdpParamGroup& group, const std::unordered_set<const torch::nn::Module*>& ran) const;

  /// Forgets a round that an exception, or the end of the root's forward, ended.
  void abandon(const FsdpParamGroup& group);

  /// Names of the modules of `group` that are not in `ran`; without a name that the root gives them, the unit's.
  std::vector<std::string> missing(const FsdpParamGroup& group,
                                   const std::unordered_set<const torch::nn::Module*>& ran) const;

 private:
  struct Member {
    const torch::nn::Module* module = nullptr;
    std::string name;
  };
  struct Round {
    std::vector<Member> members;
    std::unordered_set<const torch::nn::Module*> entered;
    std::unordered_set<const torch::nn::Module*> left;
    bool has_backward = false;
    std::shared_ptr<BackwardRound> backward;
  };

  std::unordered_map<const torch::nn::Module*, FsdpParamGroup*> group_of_;
  std::unordered_map<const FsdpParamGroup*, Round> rounds_;
};

} // namespace tieshard
