// Parameters in bfloat16: what each kind of update keeps of a step, on any number of ranks.

#include <functional>
#include <memory>

#include <ATen/ATen.h>
#include <torch/serialize.h>

#include <gtest/gtest.h>

#include "tieshard/runtime/optim/bf16_options.h"
#include "tieshard/runtime/optim/fused_adamw.h"
#include "tieshard/runtime/optim/fused_sgd.h"
#include "tieshard/runtime/optim/guarded_optimizer.h"
#include "tieshard/runtime/optim/lion.h"
#include "tieshard/runtime/optim/optimizer_guard.h"

#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/stepped_tensors.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&, const Bf16Options&)>;

/// The three optimizers with rates of which bfloat16 loses most steps.
std::vector<Make> all_optimizers() {
  return {[](const Groups& groups, const Bf16Options& bf16) {
            return std::make_unique<FusedAdamW>(groups, torch::optim::AdamWOptions(1e-4).weight_decay(0.1), bf16);
          },
          [](const Groups& groups, const Bf16Options& bf16) {
            return std::make_unique<FusedSgd>(groups, torch::optim::SGDOptions(1e-4).momentum(0.9), bf16);
          },
          [](const Groups& groups, const Bf16Options& bf16) {
            return std::make_unique<Lion>(groups, LionOptions(1e-4).weight_decay(0.1), bf16);
          }};
}

std::vector<at::Tensor> stepped(const Make& make, at::ScalarType dtype, const Bf16Options& bf16, int steps = 20) {
  const std::vector<at::Tensor> parameters = stepped_tensors(dtype);
  const auto optimizer = make(Groups{parameters}, bf16);
  step_on_gradients(*optimizer, parameters, 0, steps);
  return parameters;
}

TEST(Bf16Update, NearestRoundsAFloat32StepOfTheParameter) {
  for (const Make& make : all_optimizers()) {
    const std::vector<at::Tensor> narrow = stepped(make, at::kBFloat16, {}, 1);
    const std::vector<at::Tensor> wide = stepped_tensors();
    for (const at::Tensor& parameter : wide) {
      parameter.detach().copy_(parameter.detach().to(at::kBFloat16));
    }
    const auto optimizer = make(Groups{wide}, {});
    set_gradients(wide, 0);
    for (const at::Tensor& parameter : wide) {
      parameter.mutable_grad() = parameter.grad().to(at::kBFloat16).to(at::kFloat);
    }
    optimizer->step();
    for (std::size_t index = 0; index < wide.size(); ++index) {
      EXPECT_TRUE(at::equal(narrow[index], wide[index].to(at::kBFloat16))) << index;
    }
  }
}

TEST(Bf16Update, MomentsAreFloat32AlsoWhereLibTorchLeftOthers) {
  const std::vector<at::Tensor> parameters = stepped_tensors(at::kBFloat16);
  torch::optim::AdamW plain(parameters, torch::optim::AdamWOptions(1e-4));
  step_on_gradients(plain, parameters, 0, 2);
  FusedAdamW fused(parameters, torch::optim::AdamWOptions(1e-4));
  for (const at::Tensor& parameter : parameters) {
    fused.state()[parameter.unsafeGetTensorImpl()] = std::move(plain.state()[parameter.unsafeGetTensorImpl()]);
  }
  step_on_gradients(fused, parameters, 2, 4);
  const auto& state = static_cast<const FusedAdamW::State&>(*fused.state().at(parameters[0].unsafeGetTensorImpl()));
  EXPECT_EQ(state.exp_avg().scalar_type(), at::kFloat);
  EXPECT_EQ(state.step(), 4);
}

TEST(Bf16Update, MasterWeightsAreTheFloat32Run) {
  for (const Make& make : all_optimizers()) {
    const std::vector<at::Tensor> narrow = stepped_tensors(at::kBFloat16);
    const auto optimizer = make(Groups{narrow}, {.update = Bf16Update::kMasterWeights});
    const std::vector<at::Tensor> wide = stepped_tensors();
    for (const at::Tensor& parameter : wide) {
      parameter.detach().copy_(parameter.detach().to(at::kBFloat16));
    }
    const auto reference = make(Groups{wide}, {});
    for (int step = 0; step < 20; ++step) {
      set_gradients(narrow, step);
      optimizer->step();
      for (std::size_t index = 0; index < wide.size(); ++index) {
        wide[index].mutable_grad() =
            narrow[index].grad().defined() ? narrow[index].grad().to(at::kFloat) : at::Tensor();
      }
      reference->step();
    }
    for (std::size_t index = 0; index < wide.size(); ++index) {
      EXPECT_TRUE(at::equal(narrow[index], wide[index].to(at::kBFloat16))) << index;
    }
    EXPECT_GT(moved(narrow), 1e-4);
  }
}

/// The sum of a large parameter's values after steps of a size that nearest rounds away.
double drift(const Bf16Options& bf16) {
  const at::Tensor parameter = at::ones({50'000}, at::kBFloat16).requires_grad_(true);
  FusedSgd sgd(Groups{std::vector{parameter}}, torch::optim::SGDOptions(1.0), bf16);
  for (int step = 0; step < 10; ++step) {
    parameter.mutable_grad() = at::full_like(parameter.detach(), -0x1p-10);
    sgd.step();
  }
  return parameter.detach().to(at::kDouble).mean().item<double>() - 1.0;
}

TEST(Bf16Update, StochasticRoundingKeepsSmallStepsOnAverage) {
  EXPECT_EQ(drift({}), 0.0);
  EXPECT_NEAR(drift({.update = Bf16Update::kStochasticRounding}), 10 * 0x1p-10, 2e-4);
}

TEST(Bf16Update, StochasticRoundingHangsOnTheSeedAndGoesOnWithItsSteps) {
  const Make sgd = all_optimizers()[1];
  const Bf16Options seven{.update = Bf16Update::kStochasticRounding, .seed = 7};
  expect_all_equal(stepped(sgd, at::kBFloat16, seven), stepped(sgd, at::kBFloat16, seven));
  EXPECT_FALSE(at::equal(stepped(sgd, at::kBFloat16, seven)[0],
                         stepped(sgd, at::kBFloat16, {.update = Bf16Update::kStochasticRounding, .seed = 8})[0]));
  const at::Tensor one = at::ones({1000}, at::kBFloat16).requires_grad_(true);
  FusedSgd plain(Groups{std::vector{one}}, torch::optim::SGDOptions(1.0), seven);
  std::vector<at::Tensor> rounded;
  for (int step = 0; step < 2; ++step) { // the same step from the same place, rounded otherwise
    one.detach().fill_(1.0);
    one.mutable_grad() = at::full_like(one.detach(), -0x1p-9);
    plain.step();
    rounded.push_back(one.detach().clone());
  }
  EXPECT_FALSE(at::equal(rounded[0], rounded[1]));
}

/// What a rank holds of a whole tensor.
at::Tensor cut(const at::Tensor& whole, const FsdpParam& parameter, const FsdpState& state) {
  if (parameter.replicated()) {
    return whole;
  }
  const ChunkRange range = state.plan().range(parameter.spec(), state.mesh().rank());
  return whole.narrow(parameter.spec().dim, range.offset, range.size).contiguous();
}

/// Steps a sharded net three times on gradients that are cut from the same whole ones on every rank.
std::shared_ptr<FsdpState> stepped_shards(
    SmallNet& net, const DeviceMesh& mesh, const Make& make, ShardDimPolicy policy, Bf16Update update) {
  net.to(at::kBFloat16);
  const ShardPlan plan = plan_of(net, mesh.axis("dp_shard"), {.policy = policy});
  auto state = fully_shard(net, net.units(), plan, mesh);
  const OptimizerGuard guard(state);
  auto optimizer = guard.adopt(
      make(Groups{guard.trainable()}, {.update = update, .seed = 3, .placements = element_placements(*state)}));
  for (int step = 0; step < 3; ++step) {
    for (const FsdpParam* parameter : state->managed()) {
      const Shape& shape = parameter->spec().shape;
      const at::Tensor whole = at::cos(at::arange(c10::multiply_integers(shape), at::kFloat)).view(shape);
      parameter->parameter().mutable_grad() = cut(whole.to(at::kBFloat16), *parameter, *state);
    }
    optimizer.step();
  }
  return state;
}

TEST(Bf16UpdateOfShards, RoundsAlikeOnAnyNumberOfRanksAndReplicas) {
  const auto directory = fresh_directory("whole");
  const auto for_each_kind = [&](const auto& work) {
    for (std::size_t kind = 0; kind < 3; ++kind) {
      for (const Bf16Update update : {Bf16Update::kStochasticRounding, Bf16Update::kMasterWeights}) {
        const auto file = directory / concat(kind, "-", static_cast<int>(update), ".pt");
        work(all_optimizers()[kind], update, file.string());
      }
    }
  };
  on_ranks(1, [&](const DeviceMesh& mesh) {
    for_each_kind([&](const Make& make, Bf16Update update, const std::string& file) {
      SmallNet net;
      const auto state = stepped_shards(net, mesh, make, ShardDimPolicy::kLast, update);
      std::vector<at::Tensor> whole;
      for (const FsdpParam* parameter : state->managed()) {
        whole.push_back(parameter->shard().detach().clone());
      }
      torch::save(whole, file);
    });
  });
  const auto compare = [&](const DeviceMesh& mesh) {
    for (const ShardDimPolicy policy : {ShardDimPolicy::kLast, ShardDimPolicy::kFirst}) {
      for_each_kind([&](const Make& make, Bf16Update update, const std::string& file) {
        std::vector<at::Tensor> whole;
        torch::load(whole, file);
        SmallNet net;
        const auto state = stepped_shards(net, mesh, make, policy, update);
        for (std::size_t index = 0; index < whole.size(); ++index) {
          const FsdpParam& parameter = *state->managed()[index];
          EXPECT_TRUE(at::equal(parameter.shard(), cut(whole[index], parameter, *state))) << parameter.fqn();
        }
      });
    }
  };
  on_ranks(2, compare);
  on_ranks(3, compare);
  on_grid({2, 2}, compare);
}

// The guard cuts what an optimizer kept from before fully_shard: the master weights too.
TEST(Bf16UpdateOfShards, MasterWeightsFromBeforeShardingAreCut) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet net;
    net.to(at::kBFloat16);
    std::vector<at::Tensor> parameters;
    for (const NamedTensor& named : unique_parameters(net)) {
      parameters.push_back(named.tensor);
    }
    auto optimizer = all_optimizers()[2](Groups{parameters}, {.update = Bf16Update::kMasterWeights});
    set_gradients(parameters, 0);
    optimizer->step();
    optimizer->zero_grad();
    const auto state = shard_small_net(net, mesh);
    auto guarded = OptimizerGuard(state).adopt(std::move(optimizer));
    for (const FsdpParam* parameter : state->managed()) {
      const auto& kept = guarded.raw().state().at(parameter->parameter().unsafeGetTensorImpl());
      const auto& ours = dynamic_cast<const Bf16State&>(*kept);
      EXPECT_EQ(ours.master_weight.sizes(), parameter->shard().sizes()) << parameter->fqn();
      EXPECT_TRUE(at::equal(ours.master_weight.to(at::kBFloat16), parameter->shard())) << parameter->fqn();
    }
  });
}

} // namespace
} // namespace tieshard::testing
