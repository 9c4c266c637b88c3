// Units that compute their activations again in the backward pass.

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/batch.h"
#include "tests/support/collective_log.h"
#include "tests/support/diagnostics.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tiny_llama.h"
#include "tests/support/user_t5.h"

namespace tieshard::testing {
namespace {

/// A user's forward with dropout in `block`, which holds the unit `block.first`. It counts how often block runs.
at::Tensor loss_of(SmallNet& net, UnitRunner& runner, std::int64_t rank, int& runs) {
  return runner
      .run(net,
           small_input(rank),
           [&](const at::Tensor& input) {
             const at::Tensor hidden = runner.run(*net.block, input * net.scale, [&](const at::Tensor& h) {
               ++runs;
               const at::Tensor half =
                   runner.run(*net.first, h, [&](const at::Tensor& y) { return net.first->forward(y).tanh(); });
               return at::dropout(net.second->forward(half).tanh(), 0.5, /*train=*/true);
             });
             return net.last->forward(at::dropout(hidden, 0.5, /*train=*/true));
           })
      .square()
      .sum();
}

Wholes shards_of_gradients(const FsdpState& state) {
  Wholes gradients;
  for (const FsdpParam* parameter : state.managed()) {
    const at::Tensor& gradient = parameter->parameter().grad();
    gradients[parameter->fqn()] = gradient.defined() ? gradient.clone() : at::Tensor();
  }
  return gradients;
}

void expect_same(const Wholes& found, const Wholes& expected) {
  for (const auto& [fqn, gradient] : expected) {
    ASSERT_EQ(found.at(fqn).defined(), gradient.defined()) << fqn;
    EXPECT_TRUE(!gradient.defined() || at::equal(found.at(fqn), gradient)) << fqn;
  }
}

class ActivationCheckpointing : public ::testing::TestWithParam<int> {};

TEST_P(ActivationCheckpointing, GivesTheSameBitsWithDropoutAndLeavesTheGeneratorAlone) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    const auto step = [&](const FullyShardOptions& options, int& runs, at::Tensor& next) {
      SmallNet net;
      const auto state = shard_small_net(net, mesh, options);
      torch::manual_seed(100 + mesh.rank());
      const at::Tensor loss = loss_of(net, *state, mesh.rank(), runs);
      loss.backward();
      next = at::rand({3});
      expect_resharded(*state);
      return shards_of_gradients(*state);
    };
    int plain_runs = 0;
    at::Tensor plain_next;
    const Wholes expected = step({}, plain_runs, plain_next);
    FullyShardOptions block_only;
    block_only.per_unit["block"] = {.activation_checkpointing = true};
    for (const FullyShardOptions& options : {FullyShardOptions{.activation_checkpointing = true}, block_only}) {
      int runs = 0;
      at::Tensor next;
      expect_same(step(options, runs, next), expected);
      EXPECT_EQ(plain_runs, 1);
      EXPECT_EQ(runs, 2);
      EXPECT_TRUE(at::equal(next, plain_next));
    }
  });
}

TEST_P(ActivationCheckpointing, GivesAModelTheSameGradients) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Batch batch = make_batch(2, 7, 37);
    Wholes expected;
    for (const bool again : {false, true}) {
      const PlannedLlama loaded = load_llama(directory, mesh);
      const auto state = fully_shard(*loaded.model, loaded.plan, mesh, {.activation_checkpointing = again});
      causal_lm_loss_sum(loaded.model->forward(batch.ids), batch.labels).backward();
      if (again) {
        expect_same(shards_of_gradients(*state), expected);
      } else {
        expected = shards_of_gradients(*state);
      }
    }
  });
}

TEST_P(ActivationCheckpointing, TakesUnitsWithSeveralInputsAndOutputs) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    UserT5 expected;
    UnitRunner plain;
    for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
      (user_t5_loss(expected, user_t5_ids(rank), plain) / static_cast<double>(mesh.size())).backward();
    }
    UserT5 model;
    const auto state = fully_shard(model,
                                   mesh,
                                   {.activation_checkpointing = true,
                                    .unit_policy = units_of_class<UserEncoderLayerImpl, UserDecoderLayerImpl>()});
    user_t5_loss(model, user_t5_ids(mesh.rank()), *state).backward();
    expect_gradient_shards(*state, gradients_of(expected), 2e-5);
    expect_resharded(*state);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ActivationCheckpointing, ::testing::Values(1, 2), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

TEST(ActivationCheckpointingComm, GathersAUnitOnceForItsRecomputationAndItsBackward) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    std::vector<std::string> expected;
    for (const bool again : {false, true}) {
      SmallNet net;
      FullyShardOptions options;
      options.per_unit["block.first"] = {.activation_checkpointing = again};
      const auto state = shard_small_net(net, mesh, options);
      CollectiveLog log;
      net.forward(small_input(mesh.rank()), *state).square().sum().backward();
      if (again) {
        EXPECT_EQ(log.take(), expected);
      } else {
        expected = log.take();
        EXPECT_EQ(expected.size(), 8U);
      }
    }
  });
}

TEST(ActivationCheckpointingMemory, KeepsNoTensorOfTheUnitsForward) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    for (const bool again : {false, true}) {
      SmallNet net;
      FullyShardOptions options;
      options.per_unit["block"] = {.activation_checkpointing = again};
      options.allow_idle_units = true; // block.first is called without its own run: on one rank it is whole
      const auto state = shard_small_net(net, mesh, options);
      c10::weak_intrusive_ptr<c10::StorageImpl> activation(c10::intrusive_ptr<c10::StorageImpl>{});
      const at::Tensor loss = state->run(net, small_input(0), [&](const at::Tensor& input) {
        const at::Tensor hidden = state->run(*net.block, input * net.scale, [&](const at::Tensor& h) {
          const at::Tensor half = net.first->forward(h).tanh(); // saved for backward, mostly
          activation = half.storage().getWeakStorageImpl();
          return net.second->forward(half).tanh();
        });
        return net.last->forward(hidden).sum();
      });
      EXPECT_EQ(activation.expired(), again);
      static_cast<void>(loss);
    }
  });
}

TEST(ActivationCheckpointingErrors, InTheRecomputationLeaveAStateThatGoesOn) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    SmallNet expected;
    UnitRunner plain;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      (expected.forward(small_input(rank), plain).square().sum() / 2.0).backward();
    }
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.activation_checkpointing = true});
    int runs = 0;
    const at::Tensor loss = state->run(net, small_input(0), [&](const at::Tensor& input) {
      const at::Tensor hidden = state->run(*net.block, input * net.scale, [&](const at::Tensor& h) {
        if (++runs == 2) {
          throw std::runtime_error("the user's mistake");
        }
        return net.second->forward(
            state->run(*net.first, h, [&](const at::Tensor& y) { return net.first->forward(y); }));
      });
      return net.last->forward(hidden).sum();
    });
    EXPECT_THROW(loss.backward(), std::runtime_error);
    net.forward(small_input(mesh.rank()), *state).square().sum().backward();
    expect_gradient_shards(*state, gradients_of(expected), 1e-5);
    expect_resharded(*state);
  });
}

TEST(ActivationCheckpointingErrors, NameASecondBackwardThroughAFreedGraph) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, {.activation_checkpointing = true});
    const at::Tensor loss = net.forward(small_input(0), *state).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_ANY_THROW(loss.backward());
  });
}

} // namespace
} // namespace tieshard::testing
