#include "tieshard/runtime/state/hf_export.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/checkpoint/companion_files.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/core/io/reader.h"
#include "tieshard/core/io/slice_writer.h"
#include "tieshard/core/plan/read_plan.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/state/export_layout.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

void require_all_managed(const FsdpState& state) {
  std::set<std::string> managed;
  for (const FsdpParam* parameter : state.managed()) {
    managed.insert(parameter->fqn());
  }
  std::string missing;
  for (const ShardedParameter& parameter : state.plan().parameters()) {
    if (!managed.contains(parameter.fqn)) {
      missing += concat(missing.empty() ? "" : ", ", parameter.fqn);
    }
  }
  if (!missing.empty()) {
    throw UsageError({.code = Code::kNotSharded,
                      .what = "an export needs every parameter under fully_shard",
                      .where = missing,
                      .fix = "wrap the whole model: the root module first, then its layers"});
  }
}

/// Rank 0: an empty staging directory with every file at its full size.
void stage(const fs::path& directory, Existing existing, const std::vector<ExportFile>& files) {
  const fs::path staging = stage_directory(directory, existing);
  for (const ExportFile& file : files) {
    const File created = File::create(staging / file.name, file.layout.file_bytes);
    created.write_at(0, std::as_bytes(std::span(file.layout.prefix)));
  }
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

/// Writes this rank's part of every tensor of one file.
void write_slices(const FsdpState& state, const fs::path& staging, const ExportFile& file) {
  const File target = File::open_for_writing(staging / file.name);
  std::map<std::string, const FsdpParam*> by_name;
  for (const FsdpParam* parameter : state.managed()) {
    by_name.emplace(parameter->fqn(), parameter);
  }
  const std::int64_t rank = state.mesh().rank();
  for (const TensorEntry& tensor : file.layout.header.tensors) {
    const FsdpParam& parameter = *by_name.at(tensor.name);
    if ((parameter.replicated() && rank != 0) || parameter.shard().numel() == 0) {
      continue;
    }
    const StridedRange range =
        strided_range(tensor.shape, tensor.dtype, parameter.spec().dim, state.plan().range(parameter.spec(), rank));
    const at::Tensor shard = parameter.shard().to(at::kCPU).contiguous();
    write_slice(target,
                file.layout.offset_of(tensor.name),
                range,
                tensor.dtype,
                bytes_of(shard).data(),
                from_torch(shard.scalar_type()));
    target.start_write_back(file.layout.offset_of(tensor.name), tensor.end - tensor.begin);
  }
  target.sync();
}

/// The range in pieces of at most 4 MiB: whole rows, or parts of one.
std::vector<StridedRange> pieces_of(const StridedRange& range) {
  constexpr std::uint64_t kPiece = 4 << 20;
  std::vector<StridedRange> pieces;
  const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, kPiece / std::max<std::uint64_t>(1, range.row_bytes));
  for (std::uint64_t row = 0; row < range.rows; row += rows_at_once) {
    const std::uint64_t rows = std::min(rows_at_once, range.rows - row);
    for (std::uint64_t at = 0; at < range.row_bytes; at += kPiece) {
      pieces.push_back({.first = range.first + row * range.stride + at,
                        .rows = rows,
                        .row_bytes = std::min(kPiece, range.row_bytes - at),
                        .stride = range.stride});
    }
  }
  return pieces;
}

/// Reads this rank's part of the staged export back, a piece at a time, and compares it bit for bit with what memory
/// holds in the stored dtype.
void compare(const FsdpState& state, const fs::path& staging) {
  const Checkpoint staged = Checkpoint::open(staging);
  const ReadPlan plan = build_read_plan(staged, state.plan(), state.mesh().rank());
  std::map<std::string, at::Tensor> shards;
  for (const FsdpParam* parameter : state.managed()) {
    shards.emplace(parameter->fqn(), parameter->shard());
  }
  for (const SliceRead& read : plan.reads) {
    const at::Tensor memory = shards.at(read.fqn).to(at::kCPU).contiguous().flatten();
    const std::int64_t element = bits(read.stored_dtype) / 8;
    std::int64_t first = 0; // element of `memory` that the piece begins with
    for (const StridedRange& range : pieces_of(read.range)) {
      const auto count = static_cast<std::int64_t>(range.bytes()) / element;
      const at::Tensor expected = memory.narrow(0, first, count).to(to_torch(read.stored_dtype));
      const at::Tensor found = at::empty_like(expected);
      SliceRead piece = read;
      piece.range = range;
      piece.local_shape = {count};
      const ReadTarget target{.data = static_cast<std::byte*>(found.data_ptr()), .dtype = read.stored_dtype};
      read_slices(staged, std::span(&piece, 1), std::span(&target, 1), {.buffer_bytes = 4 << 20});
      if (std::memcmp(found.const_data_ptr(), expected.const_data_ptr(), static_cast<std::size_t>(found.nbytes())) !=
          0) {
        throw PeerError({.code = Code::kExportMismatch,
                         .what = "an export does not read back as written",
                         .where = concat(state.mesh().where(), ", ", staging.string(), ", ", read.fqn),
                         .fix = "check the disk; nothing was published, the staging directory can be removed"});
      }
      first += count;
    }
  }
  if (!plan.unused.empty() || staged.tensors().size() != state.plan().parameters().size()) {
    throw InternalError({.code = Code::kBug,
                         .what = "an export holds other tensors than the plan",
                         .where = staging.string(),
                         .fix = "report this with the config.json of the model"});
  }
}

} // namespace

ExportReport export_hf(const FsdpState& state,
                       const Checkpoint& source,
                       const fs::path& wanted,
                       const ExportOptions& options) {
  const fs::path directory = wanted.has_filename() ? wanted : wanted.parent_path(); // "out/" is "out"
  const auto start = std::chrono::steady_clock::now();
  const DeviceMesh& mesh = state.world();
  const bool writes = mesh.axis("dp_replicate").rank() == 0; // the other copies hold the same
  const fs::path staging = staging_of(directory);
  ExportReport report;
  report.directory = directory;
  std::vector<ExportFile> files;
  agree(mesh, "export: stage", [&] {
    require_all_managed(state);
    files = layout_export(state.plan(), source, options.max_shard_bytes, options.dtype);
    if (mesh.rank() == 0) {
      stage(directory, options.existing, files);
      write_text_file(staging / "config.json", export_config(state.plan(), source, options.dtype));
      copy_companion_files(source.directory(), staging);
      if (files.size() > 1) {
        write_text_file(staging / "model.safetensors.index.json", export_index(files));
      }
    }
  });
  agree(mesh, "export: write", [&] {
    for (const ExportFile& file : writes ? files : std::vector<ExportFile>()) {
      write_slices(state, staging, file);
    }
  });
  agree(mesh, "export: read back", [&] {
    if (writes) {
      compare(state, staging);
    }
    require_mappings_intact(); // zeros in place of weights read back as they were written
  });
  agree(mesh, "export: publish", [&] {
    if (mesh.rank() == 0) {
      options.existing == Existing::kReplace ? replace_directory(directory) : publish_directory(directory);
    }
  });
  for (const ExportFile& file : files) {
    report.files.push_back(file.name);
    report.bytes += file.layout.file_bytes;
    report.tensors += static_cast<std::int64_t>(file.layout.header.tensors.size());
  }
  for (const TieGroup& group : state.plan().ties().groups()) {
    for (const TieAlias& alias : group.aliases) {
      report.left_out.push_back(alias.name);
    }
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

} // namespace tieshard
