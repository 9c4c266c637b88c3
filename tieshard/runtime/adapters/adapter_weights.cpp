#include "tieshard/runtime/adapters/adapter_weights.h"

#include <chrono>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/init_slice.h"
#include "tieshard/core/io/slice_writer.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/tensors/module_parameters.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeightsName = "adapter_model.safetensors";

/// This rank's slice of a stored tensor, in `dtype`, in host memory.
at::Tensor read_slice(const AdapterFile& adapter,
                      const TensorEntry& entry,
                      const ShardedParameter& spec,
                      ChunkRange chunk,
                      const Shape& local,
                      at::ScalarType dtype) {
  const StridedRange range = strided_range(entry.shape, entry.dtype, spec.dim, chunk);
  std::vector<std::byte> stored(range.bytes());
  for (std::uint64_t row = 0; row < range.rows; ++row) {
    adapter.file().file().read_at(adapter.offset_of(entry) + range.first + row * range.stride,
                                  std::span(stored).subspan(row * range.row_bytes, range.row_bytes));
  }
  const at::Tensor values = at::empty(local, at::TensorOptions().dtype(dtype));
  convert(stored.data(),
          entry.dtype,
          static_cast<std::byte*>(values.mutable_data_ptr()),
          from_torch(dtype),
          static_cast<std::size_t>(values.numel()));
  return values;
}

void require_finite(const AdapterFile& adapter, const TensorEntry& entry, const at::Tensor& values) {
  if (!at::isfinite(values).all().item<bool>()) {
    throw InputError({.code = Code::kNotFinite,
                      .what = "an adapter holds a value that is NaN or infinite",
                      .where = concat((adapter.directory() / kWeightsName).string(), ", ", entry.name),
                      .why = "expected finite numbers, got others",
                      .fix = "give the adapter of an earlier step: no output with this one would be a number"});
  }
}

using ParametersByName = std::map<std::string, const FsdpParam*>;

/// The tensors that are written, with the dtypes of their parameters.
std::vector<AdapterTensor> written_tensors(const LoraPlan& plan) {
  std::vector<AdapterTensor> written = adapter_tensors(plan);
  std::erase_if(written, [](const AdapterTensor& tensor) { return tensor.role == AdapterTensorRole::kBase; });
  return written;
}

SafetensorsLayout layout_of(const std::vector<AdapterTensor>& tensors, const ParametersByName& parameters) {
  std::vector<TensorSpec> specs;
  std::string missing;
  for (const AdapterTensor& tensor : tensors) {
    const auto found = parameters.find(tensor.parameter);
    if (found == parameters.end()) {
      missing += concat(missing.empty() ? "" : ", ", tensor.parameter);
      continue;
    }
    specs.push_back(
        {.name = tensor.stored_name, .dtype = from_torch(found->second->shard().scalar_type()), .shape = tensor.shape});
  }
  if (!missing.empty()) {
    throw UsageError({.code = Code::kNotSharded,
                      .what = "an adapter has parameters that fully_shard does not manage",
                      .where = missing,
                      .fix = "call add_lora() before fully_shard(), or add_lora(*state, plan) after it"});
  }
  return layout_safetensors(std::move(specs), {{"format", "pt"}});
}

/// This rank's part of one tensor, into its place.
void write_part(const FsdpState& state,
                const FsdpParam& parameter,
                const AdapterTensor& tensor,
                const SafetensorsLayout& layout,
                const File& file) {
  const std::int64_t rank = state.mesh().rank();
  if ((parameter.replicated() && rank != 0) || parameter.shard().numel() == 0) {
    return;
  }
  at::Tensor shard = parameter.shard().to(at::kCPU);
  shard = (tensor.transposed ? shard.t() : shard).contiguous();
  const DType dtype = from_torch(shard.scalar_type());
  const int dim = tensor.transposed && !parameter.replicated() ? 1 - parameter.spec().dim : parameter.spec().dim;
  const StridedRange range = strided_range(tensor.shape, dtype, dim, state.plan().range(parameter.spec(), rank));
  write_slice(file,
              layout.offset_of(tensor.stored_name),
              range,
              dtype,
              static_cast<const std::byte*>(shard.const_data_ptr()),
              dtype);
}

} // namespace

at::Tensor initial_values(const NamedInit& init, const Shape& shape, at::ScalarType dtype) {
  const at::Tensor values = at::empty(shape, at::TensorOptions().dtype(dtype));
  fill_slice({.fqn = init.fqn, .rule = init.rule, .shape = shape},
             static_cast<std::byte*>(values.mutable_data_ptr()),
             from_torch(dtype));
  return values;
}

void load_adapter(torch::nn::Module& module,
                  const AdapterFile& adapter,
                  const LoraPlan& plan,
                  const ShardPlan& shards,
                  const DeviceMesh& mesh) {
  const std::int64_t rank = mesh.axis("dp_shard").rank();
  agree(mesh, "adapter", [&] {
    std::map<std::string, at::Tensor> tensors;
    for (const NamedTensor& named : named_parameters(module)) {
      tensors.emplace(named.fqn, named.tensor);
    }
    const at::NoGradGuard no_grad;
    for (const MatchedTensor& matched : adapter.match(plan)) {
      if (matched.tensor.role == AdapterTensorRole::kCopy) {
        continue;
      }
      const ShardedParameter* spec = shards.find(matched.tensor.parameter);
      const auto found = tensors.find(matched.tensor.parameter);
      if (spec == nullptr || found == tensors.end()) {
        throw UsageError({.code = Code::kUnknownParameter,
                          .what = "an adapter's parameter is not in the module or its plan",
                          .where = matched.tensor.parameter,
                          .fix = "call add_lora() with the same plan first, and build the ShardPlan after it"});
      }
      at::Tensor parameter = found->second;
      const at::Tensor values = read_slice(adapter,
                                           *matched.entry,
                                           *spec,
                                           shards.range(*spec, rank),
                                           shards.local_shape(*spec, rank),
                                           parameter.scalar_type());
      require_finite(adapter, *matched.entry, values);
      parameter.copy_(values);
    }
  });
}

AdapterReport save_adapter(const FsdpState& state, const LoraPlan& plan, const fs::path& directory, Existing existing) {
  const auto start = std::chrono::steady_clock::now();
  const DeviceMesh& mesh = state.world();
  const std::vector<AdapterTensor> tensors = written_tensors(plan);
  ParametersByName parameters;
  for (const FsdpParam* parameter : state.managed()) {
    parameters.emplace(parameter->fqn(), parameter);
  }
  SafetensorsLayout layout;
  const fs::path path = staging_of(directory) / kWeightsName;
  agree(mesh, "adapter: stage", [&] {
    layout = layout_of(tensors, parameters);
    if (mesh.rank() == 0) {
      write_text_file(stage_directory(directory, existing) / "adapter_config.json", plan.config.to_json());
      File::create(path, layout.file_bytes).write_at(0, std::as_bytes(std::span(layout.prefix)));
    }
  });
  agree(mesh, "adapter: write", [&] {
    if (mesh.axis("dp_replicate").rank() == 0) { // the other copies hold the same
      const File file = File::open_for_writing(path);
      for (const AdapterTensor& tensor : tensors) {
        write_part(state, *parameters.at(tensor.parameter), tensor, layout, file);
      }
      file.sync();
    }
  });
  agree(mesh, "adapter: publish", [&] {
    if (mesh.rank() == 0) {
      AdapterFile::open(staging_of(directory)).match(plan);
      existing == Existing::kReplace ? replace_directory(directory) : publish_directory(directory);
    }
  });
  return {.directory = directory,
          .tensors = static_cast<std::int64_t>(tensors.size()),
          .bytes = layout.file_bytes,
          .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

} // namespace tieshard
