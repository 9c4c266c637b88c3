// Several modules as one unit: what fully_shard([a, b]) is in FSDP2.

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/runtime/fsdp/fully_shard.h"

#include "tests/support/collective_log.h"
#include "tests/support/diagnostics.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/tied_module.h"

namespace tieshard::testing {
namespace {

/// first, middle and last, 4 -> 4 each, one after the other; or first and last side by side and then added up.
struct Three : torch::nn::Module {
  Three() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(4, 4));
    middle = register_module("middle", torch::nn::Linear(4, 4));
    last = register_module("last", torch::nn::Linear(4, 4));
  }

  at::Tensor chain(const at::Tensor& x, UnitRunner& runner) {
    return runner.run(*this, x, [&](const at::Tensor& input) {
      const at::Tensor a = runner.run(*first, input, [&](const at::Tensor& y) { return first->forward(y).tanh(); });
      const at::Tensor b = runner.run(*middle, a, [&](const at::Tensor& y) { return middle->forward(y).tanh(); });
      return runner.run(*last, b, [&](const at::Tensor& y) { return last->forward(y); });
    });
  }

  at::Tensor side_by_side(const at::Tensor& x, UnitRunner& runner) {
    return runner.run(*this, x, [&](const at::Tensor& input) {
      const at::Tensor both =
          runner.run(*middle, input, [&](const at::Tensor& y) { return middle->forward(y).tanh(); });
      return runner.run(*last, both, [&](const at::Tensor& y) { return last->forward(y).tanh(); }) +
             runner.run(*first, both, [&](const at::Tensor& y) { return first->forward(y); });
    });
  }

  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
};

using Forward = at::Tensor (Three::*)(const at::Tensor&, UnitRunner&);

at::Tensor input_of(std::int64_t rank) {
  return at::sin(at::arange(8, at::kFloat) + static_cast<float>(rank)).view({2, 4});
}

FullyShardOptions ends_together() {
  return {.unit_policy = units_of_all({units_together({{"first", "last"}}), units_named({"middle"})})};
}

/// Gradients of the mean over all ranks.
Wholes expected_gradients(Forward forward, std::int64_t ranks) {
  Three net;
  UnitRunner plain;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    ((net.*forward)(input_of(rank), plain).square().sum() / static_cast<double>(ranks)).backward();
  }
  return gradients_of(net);
}

class Together : public ::testing::TestWithParam<int> {};

TEST_P(Together, TheyGiveTheGradientsOfTheUnshardedModelHoweverTheyAreUsed) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const Forward forward : {&Three::chain, &Three::side_by_side}) {
      const Wholes expected = expected_gradients(forward, mesh.size());
      for (const bool checkpointing : {false, true}) {
        Three net;
        FullyShardOptions options = ends_together();
        options.activation_checkpointing = checkpointing;
        const auto state = fully_shard(net, mesh, options);
        (net.*forward)(input_of(mesh.rank()), *state).square().sum().backward();
        expect_gradient_shards(*state, expected, 1e-6);
        expect_resharded(*state);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Together, ::testing::Values(1, 2, 3, 4), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

TEST(UnitsTogether, AreGatheredBeforeTheFirstAndFreedAfterTheLast) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    Three net;
    const auto state = fully_shard(net, mesh, ends_together());
    ASSERT_EQ(state->groups().size(), 3U); // the root, the ends, the middle
    EXPECT_EQ(state->groups()[1]->name(), "first");
    EXPECT_EQ(state->groups()[1]->parameters().size(), 4U);
    std::vector<bool> whole;
    CollectiveLog log;
    state->run(net, input_of(0), [&](const at::Tensor& x) {
      const auto note = [&](const at::Tensor& y) {
        whole.push_back(state->groups()[1]->unsharded());
        return y;
      };
      note(x);
      state->run(*net.last, x, note);
      note(x);
      state->run(*net.middle, x, note);
      state->run(*net.first, x, note);
      return note(x);
    });
    EXPECT_EQ(whole, (std::vector<bool>{false, true, true, true, true, false}));
    EXPECT_THAT(log.take(), ::testing::SizeIs(2)); // the root holds nothing
  });
}

TEST(UnitsTogether, AreReducedOnceWhenTheBackwardOfAllIsDone) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    for (const Forward forward : {&Three::chain, &Three::side_by_side}) {
      Three net;
      const auto state = fully_shard(net, mesh, ends_together());
      const at::Tensor input = input_of(mesh.rank()).requires_grad_();
      const at::Tensor loss = (net.*forward)(input, *state).square().sum();
      CollectiveLog log;
      loss.backward({}, /*retain_graph=*/true);
      EXPECT_THAT(log.take(), ::testing::SizeIs(4)); // a gather and a reduction of each of the two
      loss.backward();                               // the same graph again: everything once more
      EXPECT_THAT(log.take(), ::testing::SizeIs(4));
      Wholes twice = expected_gradients(forward, mesh.size());
      for (auto& [name, gradient] : twice) {
        gradient.mul_(2);
      }
      expect_gradient_shards(*state, twice, 1e-6);
    }
  });
}

TEST(UnitsTogether, OwnTheWeightThatTheyShare) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    TiedModule module(11, 6);
    const auto state =
        fully_shard(module, mesh, {.unit_policy = units_together({{"embed_tokens", "lm_head"}, {"body"}})});
    ASSERT_EQ(state->groups().size(), 3U);
    EXPECT_TRUE(state->groups()[0]->parameters().empty());
    ASSERT_EQ(state->groups()[1]->parameters().size(), 1U);
    EXPECT_EQ(state->groups()[1]->parameters()[0].fqn(), "embed_tokens.weight");
    EXPECT_EQ(state->groups()[1]->parameters()[0].spec().dim, 1);
  });
}

TEST(UnitsTogether, AfterAnExceptionInOneOfThemStartAgain) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Three net;
    const auto state = fully_shard(net, mesh, ends_together());
    const auto fail = [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("the user's mistake"); };
    const auto pass = [](const at::Tensor& x) { return x; };
    for (const bool in_middle : {false, true}) { // in one of them, and between them
      EXPECT_THROW(state->run(net,
                              input_of(0),
                              [&](const at::Tensor& x) {
                                state->run(*net.first, x, pass);
                                return state->run(in_middle ? *net.middle : *net.last, x, fail);
                              }),
                   std::runtime_error);
      expect_resharded(*state);
    }
    net.chain(input_of(mesh.rank()), *state).square().sum().backward();
    expect_gradient_shards(*state, expected_gradients(&Three::chain, 2), 1e-6);
  });
}

TEST(UnitsTogether, NameTheOneThatDidNotRunAndAreFreed) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Three net;
    const auto state = fully_shard(net, mesh, ends_together());
    const auto only_first = [&](const at::Tensor& x) {
      return state->run(*net.first, x, [](const at::Tensor& y) { return y; });
    };
    expect_refusal([&] { state->run(net, input_of(0), only_first); }, Code::kWrongState, {"last, middle"});
    expect_resharded(*state);
    net.chain(input_of(mesh.rank()), *state).square().sum().backward();
    expect_gradient_shards(*state, expected_gradients(&Three::chain, 2), 1e-6);
  });
}

TEST(UnitsTogether, OfWhichOneIsLeftOutAreReducedWithWhatThereIs) {
  on_ranks(2, [](const DeviceMesh& mesh) {
    Three net;
    FullyShardOptions options = ends_together();
    options.allow_idle_units = true;
    const auto state = fully_shard(net, mesh, options);
    state
        ->run(net,
              input_of(0),
              [&](const at::Tensor& x) {
                return state->run(*net.first, x, [&](const at::Tensor& y) { return net.first->forward(y); });
              })
        .sum()
        .backward();
    expect_resharded(*state);
    EXPECT_TRUE(net.first->weight.grad().defined());
    EXPECT_FALSE(net.last->weight.grad().defined());
  });
}

TEST(UnitsTogether, ThatAreNoneOrTakenTwiceAreRefused) {
  on_ranks(1, [](const DeviceMesh& mesh) {
    Three net;
    const auto shard = [&](const UnitPolicy& policy) {
      return [&net, &mesh, policy] { fully_shard(net, mesh, {.unit_policy = policy}); };
    };
    expect_refusal(shard(units_together({{"first", "lst"}})), Code::kUnknownUnit, {"lst"});
    expect_refusal(shard(units_together({{"first", "first"}})), Code::kWrongState, {"given twice", "first"});
    expect_refusal(shard(units_of_all({units_together({{"first", "last"}}), units_named({"last"})})),
                   Code::kWrongState,
                   {"given twice", "last"});
    expect_refusal([] { units_together({{}}); }, Code::kWrongState, {"units_together"});
    EXPECT_EQ(fully_shard(net, mesh, ends_together())->groups().size(), 3U); // nothing was marked by the refusals
  });
}

} // namespace
} // namespace tieshard::testing
