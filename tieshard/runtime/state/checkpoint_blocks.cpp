#include "tieshard/runtime/state/checkpoint_blocks.h"

#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/shard_memory.h"
#include "tieshard/core/io/stream_copy.h"
#include "tieshard/runtime/optim/optimizer_state.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard {
namespace {

/// The optimizer's state of a parameter; null where it has none.
torch::optim::OptimizerParamState* state_of(const torch::optim::Optimizer* optimizer, const FsdpParam& parameter) {
  if (optimizer == nullptr) {
    return nullptr;
  }
  const auto found = optimizer->state().find(parameter.parameter().unsafeGetTensorImpl());
  return found == optimizer->state().end() ? nullptr : found->second.get();
}

StateFields known_fields(torch::optim::OptimizerParamState& state, const FsdpParam& parameter) {
  std::optional<StateFields> fields = fields_of(state);
  if (!fields) {
    throw UsageError({.code = Code::kOptimizerParameter,
                      .what = "an optimizer's state cannot be saved",
                      .where = parameter.fqn(),
                      .why = "its class of state is not known",
                      .fix = "derive it from MomentState, which names its tensors"});
  }
  return *std::move(fields);
}

OptimizerRecord record_of_state(const StateFields& fields) {
  OptimizerRecord record;
  for (const auto& [name, tensor] : fields.moments) {
    if (tensor->defined()) {
      record.moments.push_back(name);
    }
  }
  for (const auto& [name, number] : fields.counters) {
    record.counters[name] = *number;
  }
  return record;
}

/// Adds a tensor that is cut as `parameter`, where this rank is the one to write it.
void add_block(const FsdpState& state,
               const FsdpParam& parameter,
               const std::string& name,
               const at::Tensor& local,
               std::vector<BlockInMemory>& blocks,
               std::vector<at::Tensor>& held) {
  const std::int64_t rank = state.mesh().rank();
  if (parameter.replicated() && rank != 0) {
    return;
  }
  const ShardedParameter& spec = parameter.spec();
  const at::Tensor data = local.detach().to(at::kCPU).contiguous();
  blocks.push_back(
      {.block = block_of(name, from_torch(data.scalar_type()), spec.shape, spec.dim, state.plan().range(spec, rank)),
       .data = static_cast<const std::byte*>(data.const_data_ptr())});
  held.push_back(data);
}

std::uint64_t bytes_of(const BlockInMemory& block) {
  return checked_bytes(block.block.box.shape, block.block.dtype).value();
}

} // namespace

std::uint64_t RankBlocks::bytes() const {
  std::uint64_t sum = 0;
  for (const auto* blocks : {&model, &optimizer}) {
    for (const BlockInMemory& block : *blocks) {
      sum += bytes_of(block);
    }
  }
  return sum;
}

std::vector<ParameterRecord> parameter_records(const FsdpState& state,
                                               const torch::optim::Optimizer* optimizer,
                                               bool frozen) {
  std::vector<ParameterRecord> records;
  for (const FsdpParam* parameter : state.managed()) {
    ParameterRecord record{.fqn = parameter->fqn(),
                           .dtype = from_torch(parameter->shard().scalar_type()),
                           .shape = parameter->spec().shape,
                           .dim = parameter->spec().dim,
                           .trainable = parameter->trainable(),
                           .stored = frozen || parameter->trainable()};
    if (auto* const kept = state_of(optimizer, *parameter)) {
      record.optimizer = record_of_state(known_fields(*kept, *parameter));
    }
    records.push_back(std::move(record));
  }
  return records;
}

RankBlocks rank_blocks(const FsdpState& state,
                       const torch::optim::Optimizer* optimizer,
                       const std::vector<ParameterRecord>& records) {
  const at::NoGradGuard no_grad;
  RankBlocks blocks;
  const std::vector<const FsdpParam*> managed = state.managed();
  for (std::size_t index = 0; index < managed.size(); ++index) {
    const FsdpParam& parameter = *managed[index];
    const ParameterRecord& record = records.at(index);
    if (record.stored) {
      add_block(state, parameter, record.fqn, parameter.shard(), blocks.model, blocks.held);
    }
    if (!record.optimizer) {
      continue;
    }
    for (const auto& [name, tensor] : known_fields(*state_of(optimizer, parameter), parameter).moments) {
      if (tensor->defined()) {
        add_block(state, parameter, concat(record.fqn, ".", name), *tensor, blocks.optimizer, blocks.held);
      }
    }
  }
  return blocks;
}

std::byte* SnapshotBuffer::reserve(std::uint64_t bytes) {
  constexpr std::uint64_t kPage = 4096;
  if (bytes > bytes_) {
    memory_.reset(); // before the larger one is taken
    memory_ = ShardMemory().take(bytes);
    bytes_ = bytes;
    auto* const data = static_cast<volatile char*>(memory_.get());
    for (std::uint64_t page = 0; page < bytes; page += kPage) {
      data[page] = 0;
    }
  }
  return static_cast<std::byte*>(memory_.get());
}

RankBlocks snapshot(const RankBlocks& blocks, SnapshotBuffer& buffer) {
  RankBlocks copies;
  std::byte* target = buffer.reserve(blocks.bytes());
  for (const auto& [from, to] :
       {std::pair{&blocks.model, &copies.model}, std::pair{&blocks.optimizer, &copies.optimizer}}) {
    for (const BlockInMemory& block : *from) {
      const std::uint64_t bytes = bytes_of(block);
      stream_copy(target, block.data, bytes);
      to->push_back({.block = block.block, .data = target});
      target += bytes;
    }
  }
  return copies;
}

} // namespace tieshard
