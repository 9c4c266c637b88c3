#include "tieshard/runtime/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/runtime/fsdp/fully_shard.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/tensors/evaluation_mode.h"

namespace tieshard {
namespace {

/// The rows of one block, or one row without a target where there are none: every rank takes part in every forward.
TokenBatch block_of(const TokenData& data, std::int64_t first, std::int64_t batch, std::int64_t samples) {
  return first < samples ? data.consecutive(first, std::min(batch, samples - first))
                         : data.consecutive(data.samples(), 1);
}

/// The sum of the losses of a block and its number of targets, float64 [2] on the host.
at::Tensor loss_of(LanguageModel& model, const DeviceMesh& mesh, const TokenBatch& block) {
  SequenceInfo info;
  if (block.documents.defined()) {
    info.documents_BT = block.documents.to(mesh.device());
  }
  const at::Tensor loss = model.loss(block.ids.to(mesh.device()), block.labels.to(mesh.device()), 1.0, info);
  return at::stack(
      {loss.detach().to(at::kCPU, at::kDouble), at::scalar_tensor(model.count_targets(block.labels), at::kDouble)});
}

} // namespace

double Evaluation::perplexity() const {
  return std::exp(loss);
}

Evaluation evaluate(
    LanguageModel& model, const DeviceMesh& mesh, const TokenData& data, std::int64_t batch, std::int64_t samples) {
  const auto start = std::chrono::steady_clock::now();
  const EvaluationMode mode(model);
  const at::NoGradGuard no_grad;
  Evaluation evaluation{.samples = samples == 0 ? data.samples() : std::min(samples, data.samples())};
  at::Tensor all = at::empty({mesh.size() * 2}, at::kDouble);
  for (std::int64_t first = 0; first < evaluation.samples; first += mesh.size() * batch) {
    TokenBatch block;
    agree(mesh, "evaluation data", [&] {
      block = block_of(data, first + mesh.rank() * batch, batch, evaluation.samples);
    });
    all_gather_into_tensor(mesh, all, loss_of(model, mesh, block));
    for (std::int64_t rank = 0; rank < mesh.size(); ++rank) {
      evaluation.loss += all[2 * rank].item<double>();
      evaluation.targets += all[2 * rank + 1].item<std::int64_t>();
    }
  }
  if (const auto state = sharded_state(model)) {
    state->reshard(); // what was kept for a backward is not used
  }
  agree(mesh, "weights", require_mappings_intact);
  if (evaluation.targets == 0) {
    throw InputError({.code = Code::kDataTooShort,
                      .what = "an evaluation has no target",
                      .where = mesh.where(),
                      .why = concat("expected a target in ", evaluation.samples, " samples, got none"),
                      .fix = "give a label mask with targets, or more samples"});
  }
  evaluation.loss /= static_cast<double>(evaluation.targets);
  evaluation.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return evaluation;
}

} // namespace tieshard
