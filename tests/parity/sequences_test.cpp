// Packed documents and caches give what each document alone, and all tokens at once, give: for every decoder.

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parity/reference.h"
#include "tests/support/diagnostics.h"
#include "tests/support/training.h"

namespace tieshard::testing {
namespace {

constexpr double kTolerance = 4e-5; // other kernels add in another order

std::vector<std::string> decoders() {
  std::vector<std::string> names = reference_names();
  std::erase_if(names, [](const std::string& name) { return name.starts_with("t5") || name.ends_with("f16"); });
  return names;
}

class Sequences : public ::testing::TestWithParam<std::string> {
 protected:
  Sequences() : reference(GetParam()), parallel(parallelize(reference.directory(), DeviceMesh(), exact_options())) {
    parallel.model->eval();
  }

  const Reference reference;
  const ParallelModel parallel;
};

TEST_P(Sequences, DocumentsThatArePackedAreEachAlone) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = reference.tensor("input_ids").narrow(0, 0, 1);
  const std::vector<std::int64_t> lengths{9, 1, 11};
  std::vector<at::Tensor> alone;
  std::vector<at::Tensor> documents;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    alone.push_back(parallel.model->forward(ids.narrow(1, first, length)));
    documents.push_back(at::full({1, length}, first, at::kLong));
    first += length;
  }
  ASSERT_EQ(first, ids.size(1));
  const at::Tensor packed = parallel.model->forward(ids, {.documents_BT = at::cat(documents, 1)});
  EXPECT_LE(largest_difference(packed, at::cat(alone, 1)), kTolerance);
  EXPECT_GT(largest_difference(packed, parallel.model->forward(ids)), 100 * kTolerance); // the boundaries matter
}

TEST_P(Sequences, ThatAreCachedAreTheWhole) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = reference.tensor("input_ids");
  const at::Tensor whole = parallel.model->forward(ids);
  KvCache cache(parallel.model->cached_layers(), ids.size(1));
  std::vector<at::Tensor> parts;
  std::int64_t first = 0;
  for (const std::int64_t length : {5, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1}) { // a prompt, a second one, and token by token
    parts.push_back(parallel.model->forward(ids.narrow(1, first, length), {.cache = &cache}));
    first += length;
  }
  ASSERT_EQ(first, ids.size(1));
  EXPECT_EQ(cache.length(), first);
  EXPECT_LE(largest_difference(at::cat(parts, 1), whole), kTolerance);
}

TEST_P(Sequences, AreNotBothPackedAndCached) {
  KvCache cache(parallel.model->cached_layers(), 4);
  const at::Tensor ids = at::zeros({1, 4}, at::kLong);
  expect_refusal([&] { parallel.model->forward(ids, {.documents_BT = ids, .cache = &cache}); },
                 Code::kWrongState,
                 {"documents and a cache"});
  expect_refusal([&] { parallel.model->forward(ids, {.decoder_ids_BT = ids}); }, Code::kWrongState, {"decoder"});
}

INSTANTIATE_TEST_SUITE_P(Transformers, Sequences, ::testing::ValuesIn(decoders()), [](const auto& info) {
  return info.param;
});

} // namespace
} // namespace tieshard::testing
