#include "tieshard/runtime/state/load_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/state/block_layout.h"
#include "tieshard/core/state/box_reader.h"
#include "tieshard/runtime/mesh/agree.h"
#include "tieshard/runtime/mesh/collectives.h"
#include "tieshard/runtime/optim/optimizer_state.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

/// What keeps a checkpoint from being this run's; a line for each difference.
class Differences {
 public:
  void add(const std::string& line) {
    constexpr std::size_t kShown = 8;
    if (++count_ <= kShown) {
      lines_ += concat(lines_.empty() ? "" : "; ", line);
    }
  }

  void refuse(const fs::path& directory) const {
    if (count_ == 0) {
      return;
    }
    throw InputError({.code = Code::kCheckpointMismatch,
                      .what = "a training checkpoint is of another model or run",
                      .where = directory.string(),
                      .why = concat(lines_, count_ > 8 ? concat("; and ", count_ - 8, " more") : ""),
                      .fix = "give the model and the flags of the run that saved it, or another checkpoint"});
  }

 private:
  std::string lines_;
  std::size_t count_ = 0;
};

void compare_parameter(const ParameterRecord& saved, const FsdpParam& parameter, Differences& differences) {
  const DType dtype = from_torch(parameter.shard().scalar_type());
  if (saved.shape != parameter.spec().shape) {
    differences.add(
        concat(saved.fqn, ": expected shape ", to_string(parameter.spec().shape), ", got ", to_string(saved.shape)));
  } else if (saved.dtype != dtype && saved.stored) {
    differences.add(concat(saved.fqn, ": expected ", name(dtype), " as --param-dtype says, got ", name(saved.dtype)));
  } else if (!saved.stored && parameter.trainable()) {
    differences.add(concat(saved.fqn, ": is trained here, and was the base's there: its values were not saved"));
  }
}

void require_same_run(const Manifest& manifest,
                      const FsdpState& state,
                      const std::string& optimizer,
                      const fs::path& directory) {
  Differences differences;
  std::set<std::string> here;
  for (const FsdpParam* parameter : state.managed()) {
    here.insert(parameter->fqn());
    if (const ParameterRecord* saved = manifest.find(parameter->fqn())) {
      compare_parameter(*saved, *parameter, differences);
      continue;
    }
    const auto tie = std::ranges::find(manifest.ties, parameter->fqn(), &TieRecord::alias);
    differences.add(tie == manifest.ties.end()
                        ? concat(parameter->fqn(), ": is not in the checkpoint")
                        : concat(parameter->fqn(), ": a weight of its own here, tied to ", tie->canonical, " there"));
  }
  for (const ParameterRecord& saved : manifest.parameters) {
    if (!here.contains(saved.fqn)) {
      differences.add(concat(saved.fqn, ": is in the checkpoint, and no parameter here"));
    }
  }
  if (manifest.optimizer != optimizer) {
    differences.add(concat("expected state of the optimizer ",
                           optimizer,
                           ", got ",
                           manifest.optimizer.empty() ? "none" : manifest.optimizer));
  }
  differences.refuse(directory);
}

/// Reads tensors of one checkpoint into what this rank holds.
class StateReader {
 public:
  StateReader(const FsdpState& state, const ShardedFiles& files) : state_(state), files_(files), reader_(files) {}

  void read_parameter(const FsdpParam& parameter) {
    const ShardedTensor& tensor = stored(parameter.fqn(), parameter);
    const at::Tensor shard = parameter.shard();
    if (shard.is_cpu() && shard.is_contiguous()) {
      reader_.read(tensor, box_of(parameter), static_cast<std::byte*>(shard.data_ptr()));
    } else {
      at::Tensor(shard).copy_(read(tensor, parameter));
    }
  }

  at::Tensor read_moment(const FsdpParam& parameter, const std::string& name) {
    return read(stored(concat(parameter.fqn(), ".", name), parameter), parameter).to(parameter.shard().device());
  }

 private:
  const ShardedTensor& stored(const std::string& name, const FsdpParam& parameter) const {
    const ShardedTensor* const tensor = files_.find(name);
    if (tensor == nullptr || tensor->shape != parameter.spec().shape) {
      throw InputError({.code = Code::kCheckpointIncomplete,
                        .what = "a training checkpoint is not what its manifest says",
                        .where = concat(files_.directory().string(), ", ", name),
                        .why = concat("expected a tensor of shape ",
                                      to_string(parameter.spec().shape),
                                      ", got ",
                                      tensor == nullptr ? std::string("none") : to_string(tensor->shape)),
                        .fix = "copy the checkpoint again, or go on from another one"});
    }
    return *tensor;
  }

  Box box_of(const FsdpParam& parameter) const {
    const ShardedParameter& spec = parameter.spec();
    return block_of(spec.fqn, spec.dtype, spec.shape, spec.dim, state_.plan().range(spec, state_.mesh().rank())).box;
  }

  at::Tensor read(const ShardedTensor& tensor, const FsdpParam& parameter) {
    const Box box = box_of(parameter);
    const at::Tensor local = at::empty(box.shape, to_torch(tensor.dtype));
    reader_.read(tensor, box, static_cast<std::byte*>(local.data_ptr()));
    return local;
  }

  const FsdpState& state_;
  const ShardedFiles& files_;
  BoxReader reader_;
};

[[noreturn]] void refuse_state(const std::string& where, const std::string& why) {
  throw UsageError({.code = Code::kOptimizerParameter,
                    .what = "an optimizer cannot take the state that was saved",
                    .where = where,
                    .why = why,
                    .fix = "use one of LibTorch's SGD, Adam, AdamW, Adagrad and RMSprop, or one of tieshard's"});
}

std::unique_ptr<torch::optim::OptimizerParamState> restored(const torch::optim::Optimizer& optimizer,
                                                            const FsdpParam& parameter,
                                                            const OptimizerRecord& record,
                                                            StateReader& reader) {
  std::unique_ptr<torch::optim::OptimizerParamState> made = new_state(optimizer);
  if (made == nullptr) {
    refuse_state(parameter.fqn(), "its class is not known");
  }
  const StateFields fields = fields_of(*made).value();
  for (const std::string& name : record.moments) {
    const auto field = std::ranges::find(fields.moments, name, &std::pair<std::string, at::Tensor*>::first);
    if (field == fields.moments.end()) {
      refuse_state(parameter.fqn(), concat("it keeps no ", name));
    }
    *field->second = reader.read_moment(parameter, name);
  }
  for (const auto& [name, number] : record.counters) {
    const auto field = std::ranges::find(fields.counters, name, &std::pair<std::string, std::int64_t*>::first);
    if (field == fields.counters.end()) {
      refuse_state(parameter.fqn(), concat("it keeps no ", name));
    }
    *field->second = number;
  }
  return made;
}

std::set<const c10::TensorImpl*> held_by(const torch::optim::Optimizer& optimizer) {
  std::set<const c10::TensorImpl*> held;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      held.insert(parameter.unsafeGetTensorImpl());
    }
  }
  return held;
}

void read_all(const FsdpState& state,
              torch::optim::Optimizer& optimizer,
              const ShardedFiles& files,
              LoadedCheckpoint& loaded) {
  const at::NoGradGuard no_grad;
  StateReader reader(state, files);
  const std::set<const c10::TensorImpl*> held = held_by(optimizer);
  std::string without_optimizer;
  for (const FsdpParam* parameter : state.managed()) {
    const ParameterRecord& record = *loaded.manifest.find(parameter->fqn());
    if (record.stored) {
      reader.read_parameter(*parameter);
    }
    auto* const tensor = parameter->parameter().unsafeGetTensorImpl();
    optimizer.state().erase(tensor);
    if (record.optimizer && held.contains(tensor)) {
      optimizer.state()[tensor] = restored(optimizer, *parameter, *record.optimizer, reader);
    } else if (record.optimizer) {
      without_optimizer += concat(without_optimizer.empty() ? "" : ", ", record.fqn);
    }
  }
  if (!without_optimizer.empty()) {
    loaded.findings.push_back({.level = Level::kWarning,
                               .code = Code::kCheckpointMismatch,
                               .what = "optimizer state of a checkpoint is left out",
                               .where = loaded.directory.string(),
                               .why = concat("the optimizer does not hold ", without_optimizer),
                               .fix = "nothing, if they were frozen on purpose; their moments are not saved again"});
  }
}

/// Rank 0 looks; the others open what it has found, by its name under what they were given.
fs::path agree_on_directory(const DeviceMesh& mesh, const fs::path& given, Verify verify, LoadedCheckpoint& loaded) {
  std::string name;
  agree(mesh, "checkpoint: find", [&] {
    if (mesh.rank() == 0) {
      FoundCheckpoint found = find_checkpoint(given, verify);
      name = found.directory.lexically_relative(given).string();
      loaded.findings = std::move(found.findings);
    }
  });
  name = all_gather_text(mesh, name, CollectivePurpose::named("checkpoint: which")).front();
  return name == "." || name.empty() ? given : given / name;
}

} // namespace

LoadedCheckpoint load_checkpoint(const FsdpState& state,
                                 torch::optim::Optimizer& optimizer,
                                 const std::string& optimizer_name,
                                 const fs::path& given,
                                 Verify verify) {
  const auto start = std::chrono::steady_clock::now();
  const DeviceMesh& mesh = state.world();
  LoadedCheckpoint loaded;
  loaded.directory = agree_on_directory(mesh, given, verify, loaded);
  std::optional<ShardedFiles> files;
  agree(mesh, "checkpoint: open", [&] {
    loaded.manifest = open_manifest(loaded.directory, Verify::kSizes);
    const fs::path trainer = loaded.directory / TrainerState::kFileName;
    loaded.trainer = parse_trainer_state(read_text_file(trainer), trainer.string());
    require_same_run(loaded.manifest, state, optimizer_name, loaded.directory);
    files.emplace(ShardedFiles::open(loaded.directory));
    if (files->id() != loaded.manifest.id) {
      throw InputError({.code = Code::kSavesMixed,
                        .what = "sharded files of several saves are in one directory",
                        .where = loaded.directory.string(),
                        .why = concat("expected the id ", loaded.manifest.id, " of manifest.json, got ", files->id()),
                        .fix = "copy one checkpoint into an empty directory"});
    }
  });
  agree(mesh, "checkpoint: read", [&] { read_all(state, optimizer, *files, loaded); });
  loaded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loaded;
}

} // namespace tieshard
