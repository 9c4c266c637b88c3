// The numbers of transformers, on 1 to 4 ranks: tests/reference/make_reference.py wrote them.

#include <filesystem>

#include <gtest/gtest.h>

#include "tieshard/core/checkpoint/safetensors_file.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

// Twice the distance of float32 from float64 that the references were measured to have: absolute, on every element.
constexpr double kLogitsTolerance = 2.8e-5;
constexpr double kLossTolerance = 2e-6;
constexpr double kGradientTolerance = 1.2e-5;
constexpr double kParameterTolerance = 3.2e-6;
constexpr double kGradientFloor = 1e-5; // AdamW makes a full step of a rounding-size gradient

class Reference {
 public:
  explicit Reference(const std::string& name)
      : directory_(std::filesystem::path(TIESHARD_REFERENCE_DIR) / name),
        file_(SafetensorsFile::open(directory_ / "reference.safetensors")) {}

  at::Tensor tensor(const std::string& name) const {
    const TensorEntry* entry = file_.find(name);
    if (entry == nullptr) {
      throw std::runtime_error("the reference has no " + name);
    }
    at::Tensor values = at::empty(entry->shape, to_torch(entry->dtype));
    file_.file().read_at(file_.header().data_start + entry->begin,
                         {static_cast<std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
    return values;
  }
  bool has(const std::string& name) const {
    return file_.find(name) != nullptr;
  }
  const std::filesystem::path& directory() const {
    return directory_;
  }

 private:
  std::filesystem::path directory_;
  SafetensorsFile file_;
};

struct Case {
  const char* name;
  int ranks;
  ShardDimPolicy policy;
};

class LlamaParity : public ::testing::TestWithParam<Case> {};

void expect_parity(const Case& test, const DeviceMesh& mesh) {
  const Reference reference(test.name);
  ParallelizeOptions options = exact_options();
  options.shard_dim = test.policy;
  ParallelModel parallel = parallelize(reference.directory(), mesh, options);
  const Batch batch{reference.tensor("input_ids"), reference.tensor("labels")};
  {
    const at::NoGradGuard no_grad;
    const at::Tensor logits = parallel.model->forward(batch.ids);
    EXPECT_LE(largest_difference(logits, reference.tensor("logits")), kLogitsTolerance);
  }
  const TrainResult result = train_steps(parallel, mesh, batch, 3);
  const at::Tensor losses = reference.tensor("losses");
  for (int step = 0; step < 3; ++step) {
    EXPECT_NEAR(result.losses[static_cast<std::size_t>(step)], losses[step].item<double>(), kLossTolerance) << step;
  }
  ASSERT_EQ(result.gradients.size(), parallel.plan.parameters().size());
  for (const auto& [fqn, gradient] : result.gradients) {
    ASSERT_TRUE(reference.has("grad." + fqn)) << fqn;
    const at::Tensor expected = reference.tensor("grad." + fqn);
    EXPECT_LE(largest_difference(gradient, expected), kGradientTolerance) << fqn;
    const at::Tensor firm = expected.abs() > kGradientFloor;
    EXPECT_LE(largest_difference(result.parameters.at(fqn).masked_select(firm),
                                 reference.tensor("step3." + fqn).masked_select(firm)),
              kParameterTolerance)
        << fqn;
  }
}

TEST_P(LlamaParity, LogitsLossGradientsAndThreeAdamWStepsEqualTransformers) {
  const Case& test = GetParam();
  on_ranks(test.ranks, [&](const DeviceMesh& mesh) { expect_parity(test, mesh); });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* name : {"llama_tied", "llama_untied", "llama_tied_v4config", "llama3_rope"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      all.push_back({name, ranks, ShardDimPolicy::kLast});
    }
    all.push_back({name, 3, ShardDimPolicy::kFirst});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Transformers, LlamaParity, ::testing::ValuesIn(cases()), [](const auto& info) {
  return concat(
      info.param.name, "_", info.param.ranks, info.param.policy == ShardDimPolicy::kLast ? "_last" : "_first");
});

} // namespace
} // namespace tieshard::testing
