#include <gtest/gtest.h>

#include "tests/support/batch.h"
#include "tests/support/loaded_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/small_net.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

/// bf16 keeps 8 bits: a product is off by 2^-9, a gradient through two layers by a few of them.
constexpr double kBfloat16Bound = 0.03;

FullyShardOptions bfloat16_compute(std::optional<at::ScalarType> reduce = at::kFloat) {
  return {.mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = reduce}};
}

class MixedPrecision : public ::testing::TestWithParam<int> {};

TEST_P(MixedPrecision, ComputesTheLogitsOfTheModelInBfloat16BitForBit) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const at::NoGradGuard no_grad;
    const Batch batch = make_batch(2, 7, 37);
    const PlannedLlama loaded = load_llama(directory, mesh); // float32 shards
    fully_shard(*loaded.model, loaded.plan, mesh, bfloat16_compute());
    const at::Tensor logits = loaded.model->forward(batch.ids);
    EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(logits, load_whole(directory, at::kBFloat16)->forward(batch.ids)));
  });
}

TEST_P(MixedPrecision, GivesGradientsOfTheBfloat16ModelInFloat32Shards) {
  const auto directory = write_tiny_llama("model", {});
  on_ranks(GetParam(), [&](const DeviceMesh& mesh) {
    const Batch batch = make_batch(2, 7, 37); // the same on every rank: their mean is each one's
    const auto gradient_of = [&](LanguageModel& model) {
      const at::Tensor logits = model.forward(batch.ids);
      (causal_lm_loss_sum(logits, batch.labels) / static_cast<double>(count_targets(batch.labels))).backward();
    };
    const auto narrow = load_whole(directory, at::kBFloat16);
    gradient_of(*narrow);
    const auto wide = load_whole(directory);
    gradient_of(*wide);
    const Wholes exact = gradients_of(*wide);
    for (const bool reshard : {true, false}) {
      PlannedLlama loaded = load_llama(directory, mesh);
      FullyShardOptions options = bfloat16_compute();
      options.reshard_after_forward = reshard;
      const auto state = fully_shard(*loaded.model, loaded.plan, mesh, options);
      gradient_of(*loaded.model);
      expect_gradient_shards(*state, gradients_of(*narrow), 1e-7);
      for (const FsdpParam* parameter : state->managed()) {
        const at::Tensor& gradient = parameter->parameter().grad();
        EXPECT_EQ(parameter->parameter().scalar_type(), at::kFloat) << parameter->fqn();
        EXPECT_EQ(gradient.scalar_type(), at::kFloat) << parameter->fqn();
        const at::Tensor whole = exact.at(parameter->fqn());
        const double error =
            (gradient - part_of_whole(*state, *parameter, whole)).norm().item<double>() / whole.norm().item<double>();
        EXPECT_LE(error, kBfloat16Bound) << parameter->fqn();
      }
    }
  });
}

TEST_P(MixedPrecision, LeavesTheFloat32ShardsUnrounded) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const Wholes wholes = values_of(net);
    const auto state = shard_small_net(net, mesh, bfloat16_compute());
    net.forward(small_input(mesh.rank()), *state).sum().backward();
    expect_resharded(*state);
    expect_shards(*state, wholes, 0.0);
    EXPECT_EQ(net.scale.scalar_type(), at::kFloat); // a replicated one too
    EXPECT_EQ(net.scale.grad().scalar_type(), at::kFloat);
  });
}

TEST_P(MixedPrecision, AddsUpGradientsOfSeveralPassesInFloat32) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    const auto state = shard_small_net(net, mesh, bfloat16_compute());
    net.forward(small_input(mesh.rank()), *state).sum().backward();
    const Wholes once = gradients_of(net);
    for (int pass = 1; pass < 4; ++pass) {
      net.forward(small_input(mesh.rank()), *state).sum().backward();
    }
    for (const NamedTensor& named : unique_parameters(net)) {
      if (once.at(named.fqn).defined()) {
        expect_close(named.tensor.grad(), once.at(named.fqn) * 4, 1e-5, named.fqn);
      }
    }
  });
}

TEST_P(MixedPrecision, GivesTheOutputDtypeThatIsAskedFor) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    SmallNet net;
    FullyShardOptions options = bfloat16_compute();
    options.mp_policy.output_dtype = at::kFloat;
    const auto state = shard_small_net(net, mesh, options);
    const at::Tensor output = net.forward(small_input(0), *state);
    EXPECT_EQ(output.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(output, output.to(at::kBFloat16).to(at::kFloat))); // computed in bf16 all the same
    output.sum().backward();
    EXPECT_TRUE(net.first->weight.grad().defined());
    expect_resharded(*state);
  });
}

TEST_P(MixedPrecision, CastsInputsOnlyIfItIsToldTo) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    for (const bool cast : {true, false}) {
      torch::nn::Linear layer(4, 2);
      FullyShardOptions options = bfloat16_compute();
      options.mp_policy.cast_forward_inputs = cast;
      const auto state = fully_shard(*layer, {{"", layer.get()}}, plan_of(*layer, mesh), mesh, options);
      at::ScalarType seen = at::kDouble;
      state->run(*layer, small_input(0), [&](const at::Tensor& x) {
        seen = x.scalar_type();
        return x;
      });
      EXPECT_EQ(seen, cast ? at::kBFloat16 : at::kFloat);
    }
  });
}

TEST_P(MixedPrecision, ReducesInTheComputeDtypeUnlessToldOtherwise) {
  on_ranks(GetParam(), [](const DeviceMesh& mesh) {
    // 256 + 1 is no bf16 number: a sum of ranks in bf16 loses the 1, one in float32 keeps it
    const auto gradient = [&](std::optional<at::ScalarType> reduce) {
      torch::nn::Linear layer(torch::nn::LinearOptions(4, 4).bias(false));
      FullyShardOptions options = bfloat16_compute(reduce);
      options.gradient_divide_factor = 1.0;
      const auto state = fully_shard(*layer, {{"", layer.get()}}, plan_of(*layer, mesh), mesh, options);
      const at::Tensor x = at::full({1, 4}, mesh.rank() == 0 ? 256.0 : 1.0);
      state->run(*layer, x, [&](const at::Tensor& y) { return layer->forward(y); }).sum().backward();
      return layer->weight.grad().max().item<double>();
    };
    const double exact = 256.0 + static_cast<double>(mesh.size() - 1);
    EXPECT_EQ(gradient(at::kFloat), exact);
    EXPECT_EQ(gradient(std::nullopt), mesh.size() == 2 ? 256.0 : exact);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, MixedPrecision, ::testing::Values(1, 2), [](const auto& info) {
  return concat(info.param, info.param == 1 ? "rank" : "ranks");
});

/// A table of numbers first, since a buffer of the first one's dtype would hold the others no more.
struct MixedDtypes : torch::nn::Module {
  MixedDtypes() {
    table = register_parameter("table", at::arange(4, at::kLong) + (1 << 24), /*requires_grad=*/false);
    narrow = register_parameter("narrow", at::full({4}, 1.5, at::kBFloat16));
    wide = register_parameter("wide", at::full({4}, 1.0 + 1.0 / 4096));
    wider = register_parameter("wider", at::full({3}, 1.0 + 1.0 / (std::int64_t{1} << 40), at::kDouble));
  }
  at::Tensor table;
  at::Tensor narrow;
  at::Tensor wide;
  at::Tensor wider;
};

class ParametersOfSeveralDtypes : public ::testing::TestWithParam<BackendChoice> {};

TEST_P(ParametersOfSeveralDtypes, KeepTheirValuesAndGradientsInOneUnit) {
  const auto body = [](const DeviceMesh& mesh) {
    MixedDtypes module;
    const auto state = fully_shard(module, {{"", &module}}, plan_of(module, mesh), mesh);
    const at::Tensor x = at::full({4}, 1.0 + 1.0 / 1024);
    const at::Tensor output = state->run(module, x, [&](const at::Tensor& y) {
      EXPECT_TRUE(at::equal(module.table, at::arange(4, at::kLong) + (1 << 24)));
      EXPECT_TRUE(at::equal(module.wider.detach(), at::full({3}, 1.0 + 1.0 / (std::int64_t{1} << 40), at::kDouble)));
      return module.narrow * 2 + module.wide * y + module.wider.sum().to(at::kFloat) * 0;
    });
    EXPECT_TRUE(at::equal(output.detach(), 3 + at::full({4}, 1.0 + 1.0 / 4096) * x)); // the float32 one is not rounded
    output.sum().backward();
    EXPECT_EQ(module.wide.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(module.narrow.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(module.wider.grad().scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(module.wide.grad(), x.narrow(0, 0, module.wide.size(0))));
  };
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, body, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         ParametersOfSeveralDtypes,
                         ::testing::Values(BackendChoice::kShm, BackendChoice::kGloo),
                         [](const auto& info) { return info.param == BackendChoice::kShm ? "shm" : "gloo"; });

TEST(ParametersOfSeveralDtypes, AreConvertedToTheComputeDtypeOnlyWhereTheyAreFloatingPoint) {
  on_ranks(4, [](const DeviceMesh& mesh) {
    for (const ReshardAfterForward reshard : {ReshardAfterForward(true), ReshardAfterForward(std::int64_t{2})}) {
      MixedDtypes module;
      torch::nn::Module root;
      root.register_module("inner", std::shared_ptr<torch::nn::Module>(&module, [](auto*) {}));
      const auto state = fully_shard(root,
                                     {{"", &root}, {"inner", &module}},
                                     mesh,
                                     {.mp_policy = {.param_dtype = at::kBFloat16},
                                      .reshard_after_forward = reshard,
                                      .activation_checkpointing = true});
      int forwards = 0; // the second one computes again, of what was kept after the first
      const at::Tensor output = state->run(root, at::ones({4}), [&](const at::Tensor& x) {
        return state->run(module, x, [&](const at::Tensor& y) {
          ++forwards;
          EXPECT_TRUE(at::equal(module.table, at::arange(4, at::kLong) + (1 << 24)));
          EXPECT_EQ(module.wide.scalar_type(), at::kBFloat16);
          return module.wide * y + module.narrow + module.wider.sum();
        });
      });
      output.sum().backward();
      EXPECT_EQ(forwards, 2);
    }
  });
}

} // namespace
} // namespace tieshard::testing
