// tieshard/core/families/expert_names.h
//
// Which parameters are weights of experts, by the names that all families give them.
//
// Flow:   plan/rank_bytes.h, cli/plan_text.h -> [this]
// Source: transformers' mixtures: mlp.experts.gate_up_proj, mlp.experts.N.up_proj, block_sparse_moe.experts.N.w1.

#pragma once

#include <string_view>

namespace tieshard {

/// True for a weight or bias of one expert or of all of a layer; false for what chooses them (router, gate) and for
/// experts that every token goes through (shared_expert).
inline bool is_expert_weight(std::string_view fqn) {
  return fqn.starts_with("experts.") || fqn.find(".experts.") != std::string_view::npos;
}

} // namespace tieshard
