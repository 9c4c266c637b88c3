// tieshard/runtime/optim/bf16_state.h
//
// What an optimizer keeps for a bfloat16 parameter beside the state that LibTorch's class of it has.
//
// Flow: fused_adamw, fused_sgd, lion -> [this] -> optimizer_state

#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include "tieshard/runtime/optim/optimizer_state.h"

namespace tieshard {

class Bf16State : public MomentState {
 public:
  at::Tensor master_weight;       ///< float32, shaped as the parameter; undefined without master weights
  std::int64_t rounded_steps = 0; ///< steps that were rounded at random: the next one's random bits hang on it
};

struct LionParamState;

/// Those of a state without the above.
StateFields fields_of(torch::optim::AdamWParamState& state);
StateFields fields_of(torch::optim::SGDParamState& state);
StateFields fields_of(LionParamState& state);

/// LibTorch's state `Base` with the above; still a `Base` to LibTorch's optimizer.
template <typename Base>
class WithBf16State : public Base, public Bf16State {
 public:
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override {
    return std::make_unique<WithBf16State>(*this);
  }

  StateFields fields() override {
    StateFields all = fields_of(static_cast<Base&>(*this));
    all.moments.emplace_back("master_weight", &master_weight);
    all.counters.emplace_back("rounded_steps", &rounded_steps);
    return all;
  }

  /// Reads what LibTorch's own class wrote, too.
  void serialize(torch::serialize::InputArchive& archive) override {
    Base::serialize(archive);
    archive.try_read("master_weight", master_weight);
    c10::IValue steps;
    if (archive.try_read("rounded_steps", steps)) {
      rounded_steps = steps.toInt();
    }
  }

  void serialize(torch::serialize::OutputArchive& archive) const override {
    Base::serialize(archive);
    if (master_weight.defined()) {
      archive.write("master_weight", master_weight);
    }
    archive.write("rounded_steps", c10::IValue(rounded_steps));
  }

  /// The state in `kept`: made when there is none, and taken over when it is LibTorch's.
  static WithBf16State& in(std::unique_ptr<torch::optim::OptimizerParamState>& kept) {
    if (auto* ours = dynamic_cast<WithBf16State*>(kept.get())) {
      return *ours;
    }
    auto made = std::make_unique<WithBf16State>();
    if (kept != nullptr) {
      static_cast<Base&>(*made) = static_cast<const Base&>(*kept);
    }
    WithBf16State& state = *made;
    kept = std::move(made);
    return state;
  }
};

} // namespace tieshard
