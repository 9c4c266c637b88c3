#include "tieshard/core/state/recorded_state.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/checkpoint_store.h"
#include "tieshard/core/state/trainer_state.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStep = "step";
constexpr const char* kResharded = "dp_shard"; ///< the only axis of what reshard wrote, with the generators of the save

/// Moments that their optimizers correct by the number of steps.
constexpr std::array<const char*, 3> kCountedMoments = {"exp_avg_sq", "square_avg", "sum"};

[[noreturn]] void refuse(const std::string& where, std::string why) {
  throw InputError({.code = Code::kCheckpointIncomplete,
                    .what = "a training checkpoint is not what its manifest says",
                    .where = where,
                    .why = std::move(why),
                    .fix = "use another checkpoint of the run, or copy this one again"});
}

/// Holds one tensor after another against its record, and keeps what is wrong.
class TensorCheck {
 public:
  explicit TensorCheck(const ShardedFiles& files) : files_(files) {}

  /// @param dtype  that it has to have; null: any
  void require(const std::string& name, const ParameterRecord& parameter, const DType* dtype) {
    recorded_.insert(name);
    const ShardedTensor* const tensor = files_.find(name);
    const std::string wanted =
        concat(dtype == nullptr ? "" : tieshard::name(*dtype), dtype == nullptr ? "" : " ", to_string(parameter.shape));
    if (tensor == nullptr) {
      add(name, concat(wanted, ", got no such tensor"));
    } else if (tensor->shape != parameter.shape || (dtype != nullptr && tensor->dtype != *dtype)) {
      add(name, concat(wanted, ", got ", tieshard::name(tensor->dtype), " ", to_string(tensor->shape)));
    } else if (tensor->cut >= 0 && tensor->cut != parameter.dim) {
      add(name, concat("to be cut on dimension ", parameter.dim, ", got one that is cut on ", tensor->cut));
    }
  }

  void require_no_others() {
    for (const ShardedTensor& tensor : files_.tensors()) {
      if (!recorded_.contains(tensor.name)) {
        add(tensor.name, concat("to be in the manifest, got one that is not"));
      }
    }
  }

  void finish() const {
    if (!wrong_.empty()) {
      refuse(concat(files_.directory().string(), ", ", format_names(wrong_)), first_);
    }
  }

 private:
  void add(const std::string& name, const std::string& difference) {
    if (wrong_.empty()) {
      first_ = concat("expected ", format_name(name), " ", difference);
    }
    wrong_.push_back(name);
  }

  const ShardedFiles& files_;
  std::set<std::string, std::less<>> recorded_;
  std::vector<std::string> wrong_;
  std::string first_;
};

/// The numbers that an optimizer keeps beside the moments.
void require_counters(const fs::path& directory, const Manifest& manifest, const ParameterRecord& parameter) {
  const OptimizerRecord& optimizer = *parameter.optimizer;
  const std::string where =
      concat((directory / Manifest::kFileName).string(), ", ", format_name(parameter.fqn), ", optimizer");
  const auto has = [&](const char* moment) {
    return std::ranges::find(optimizer.moments, moment) != optimizer.moments.end();
  };
  if (has("exp_avg_sq") && !has("exp_avg")) {
    refuse(where, "expected exp_avg beside exp_avg_sq, got none");
  }
  if (std::ranges::any_of(kCountedMoments, has) && !optimizer.counters.contains(kStep)) {
    refuse(where, concat("expected the counter \"", kStep, "\" beside the moments, got none"));
  }
  for (const auto& [name, count] : optimizer.counters) {
    if (count > manifest.step) {
      refuse(where, concat("expected ", format_name(name), " from 0 to step ", manifest.step, ", got ", count));
    }
  }
}

void require_trainer(const fs::path& directory, const Manifest& manifest) {
  const std::string where = (directory / TrainerState::kFileName).string();
  const TrainerState trainer = parse_trainer_state(read_text_file(where), where);
  if (trainer.step != manifest.step) {
    refuse(where, concat("expected step ", manifest.step, " as in ", Manifest::kFileName, ", got ", trainer.step));
  }
  const auto got = trainer.generators.size();
  if (std::ranges::find(trainer.generators, "") != trainer.generators.end()) {
    refuse(where, "expected a state of each generator, got an empty one");
  }
  if (manifest.mesh.empty()) {
    refuse((directory / Manifest::kFileName).string(), "expected the axes of a mesh, got none");
  }
  Shape sizes;
  for (const MeshAxisRecord& axis : manifest.mesh) {
    sizes.push_back(axis.size);
  }
  const auto ranks = static_cast<std::uint64_t>(numel(sizes));
  const bool resharded = manifest.mesh.size() == 1 && manifest.mesh.front().name == kResharded;
  if (got == 0 || (got != ranks && !resharded)) {
    refuse(where, concat("expected generators of ", ranks, " ranks as in the mesh, got ", got));
  }
}

} // namespace

void require_as_recorded(const ShardedFiles& files, const Manifest& manifest) {
  if (files.id() != manifest.id) {
    throw InputError({.code = Code::kSavesMixed,
                      .what = "sharded files of several saves are in one directory",
                      .where = files.directory().string(),
                      .why = concat("expected the manifest's id ",
                                    manifest.id,
                                    " in all files, got ",
                                    files.id().empty() ? "none" : format_name(files.id())),
                      .fix = "keep manifest and files of one save; an earlier checkpoint may be whole"});
  }
  TensorCheck check(files);
  for (const ParameterRecord& parameter : manifest.parameters) {
    if (parameter.stored) {
      check.require(parameter.fqn, parameter, &parameter.dtype);
    }
    if (parameter.optimizer) {
      for (const std::string& moment : parameter.optimizer->moments) {
        check.require(concat(parameter.fqn, ".", moment), parameter, nullptr);
      }
    }
  }
  check.require_no_others();
  check.finish();
}

void require_recorded_state(const fs::path& directory, const Manifest& manifest) {
  const std::string name = (directory.has_filename() ? directory : directory.parent_path()).filename().string();
  if (const auto step = CheckpointStore::step_of(name); step && *step != manifest.step) {
    refuse(directory.string(), concat("expected step ", *step, " as the name says, got ", manifest.step));
  }
  require_trainer(directory, manifest);
  for (const ParameterRecord& parameter : manifest.parameters) {
    if (parameter.optimizer) {
      require_counters(directory, manifest, parameter);
    }
  }
  require_as_recorded(ShardedFiles::open(directory), manifest);
}

} // namespace tieshard
