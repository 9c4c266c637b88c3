#include "tieshard/runtime/state/hf_export.h"

#include <chrono>
#include <exception>
#include <map>
#include <set>
#include <span>
#include <sstream>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/staged_directory.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/companion_files.h"
#include "tieshard/core/io/mapped_guard.h"
#include "tieshard/core/io/overflow.h"
#include "tieshard/core/plan/read_plan.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/state/export_layout.h"
#include "tieshard/runtime/state/export_writer.h"
#include "tieshard/runtime/state/kept_encoding.h"

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

/// Rank 0: what a loader would find in the staged export is the plan, all of it and nothing else.
void require_whole(const FsdpState& state, const fs::path& staging) {
  const Checkpoint staged = Checkpoint::open(staging);
  const ReadPlan plan = build_read_plan(staged, state.plan(), 0);
  if (!plan.unused.empty()) {
    throw InternalError({.code = Code::kBug,
                         .what = "an export holds other tensors than the plan",
                         .where = staging.string(),
                         .why = concat("expected no more than its parameters, got ", format_names(plan.unused)),
                         .fix = "report this with the config.json of the model"});
  }
}

/// Values that became infinite on any rank, by parameter. A collective.
std::map<std::string, std::int64_t> overflowed_anywhere(const DeviceMesh& mesh, const std::vector<WrittenPart>& parts) {
  std::string mine;
  for (const WrittenPart& part : parts) {
    for (const auto& [fqn, values] : part.overflowed) {
      mine += concat(fqn, " ", values, "\n");
    }
  }
  std::map<std::string, std::int64_t> sums;
  for (const std::string& of_rank : all_gather_text(mesh, mine, CollectivePurpose::named("export: overflowed"))) {
    std::istringstream lines(of_rank);
    std::string fqn;
    for (std::int64_t values = 0; lines >> fqn >> values;) {
      sums[fqn] += values;
    }
  }
  return sums;
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
  const std::set<std::string> kept = options.dtype ? std::set<std::string>() : unchanged_mxfp4(state, source);
  agree(mesh, "export: stage", [&] {
    require_all_managed(state);
    files = layout_export(state.plan(), source, options.max_shard_bytes, options.dtype, kept);
    if (mesh.rank() == 0) {
      stage(directory, options.existing, files);
      write_text_file(staging / "config.json", export_config(state.plan(), source, options.dtype, kept));
      copy_companion_files(source.directory(), staging);
      if (files.size() > 1) {
        write_text_file(staging / "model.safetensors.index.json", export_index(files));
      }
    }
  });
  std::vector<WrittenPart> parts;
  for (const ExportFile& file : writes ? files : std::vector<ExportFile>()) {
    parts.push_back(write_export_file(state, staging, file));
  }
  agree(mesh, "export: write", [&] {
    for (const WrittenPart& part : parts) {
      if (part.failure != nullptr) {
        std::rethrow_exception(part.failure);
      }
    }
    require_mappings_intact(); // zeros in place of weights read back as they were written
  });
  agree(mesh, "export: read back", [&] {
    if (mesh.rank() == 0) {
      require_whole(state, staging);
    }
  });
  if (const auto overflowed = overflowed_anywhere(mesh, parts); !overflowed.empty()) {
    report.findings.push_back(overflow_finding(Level::kWarning, overflowed, directory.string()));
  }
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
