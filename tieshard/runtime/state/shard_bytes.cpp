#include "tieshard/runtime/state/shard_bytes.h"

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/overflow.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard {

ShardBytes::ShardBytes(const FsdpState& state) {
  for (const FsdpParam* parameter : state.managed()) {
    by_name_.emplace(parameter->fqn(), parameter);
  }
}

bool ShardBytes::in_place(const FsdpParam& parameter, DType stored) const {
  const at::Tensor& shard = parameter.shard();
  return shard.device().type() == at::kCPU && shard.is_contiguous() && from_torch(shard.scalar_type()) == stored;
}

std::span<std::byte> ShardBytes::run(
    const FsdpParam& parameter, std::uint64_t first, std::uint64_t count, DType stored, std::span<std::byte> buffer) {
  const at::Tensor elements = parameter.shard()
                                  .detach()
                                  .view({-1})
                                  .narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count))
                                  .to(at::kCPU);
  auto* const data = static_cast<std::byte*>(elements.mutable_data_ptr());
  if (in_place(parameter, stored)) {
    return {data, elements.nbytes()};
  }
  const DType memory = from_torch(elements.scalar_type());
  if (!convertible(memory, stored)) {
    throw UsageError({.code = Code::kNotConvertible,
                      .what = "no conversion between two dtypes",
                      .where = parameter.fqn(),
                      .why = concat("only F16, BF16, F32 and F64 convert, got ", name(memory), " to ", name(stored)),
                      .fix = "export the tensor in the dtype that it has in memory"});
  }
  convert(data, memory, buffer.data(), stored, count);
  if (const std::int64_t infinite = count_overflowed(data, memory, buffer.data(), stored, count); infinite > 0) {
    overflowed_[parameter.fqn()] += infinite;
  }
  return buffer.first(count * static_cast<std::size_t>(bits(stored)) / 8);
}

} // namespace tieshard
