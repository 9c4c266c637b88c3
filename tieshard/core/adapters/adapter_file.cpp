#include "tieshard/core/adapters/adapter_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tieshard/core/adapters/transposed.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"
#include "tieshard/core/io/convert.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kWeightsName = "adapter_model.safetensors";

void require_files(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    throw InputError({.code = Code::kDirectoryNotFound,
                      .what = "the adapter's directory is not there",
                      .where = directory.string(),
                      .fix = "give the directory that PEFT's save_pretrained or tieshard train --lora wrote"});
  }
  if (!fs::exists(directory / kConfigName, error)) {
    throw InputError({.code = Code::kFileNotFound,
                      .what = "the directory holds no adapter",
                      .where = (directory / kConfigName).string(),
                      .why = "expected adapter_config.json and adapter_model.safetensors",
                      .fix = "give the directory that PEFT's save_pretrained or tieshard train --lora wrote"});
  }
  if (!fs::exists(directory / kWeightsName, error)) {
    const bool pickled = fs::exists(directory / "adapter_model.bin", error);
    throw InputError(
        {.code = Code::kNoWeights,
         .what = "the adapter has no safetensors weights",
         .where = directory.string(),
         .why = concat("expected adapter_model.safetensors, got ",
                       pickled ? "adapter_model.bin, a Python pickle" : "none"),
         .fix = pickled
                    ? "if you trust its origin, load it with PEFT and save it again: save_pretrained writes safetensors"
                    : "download or save the adapter again"});
  }
}

/// One error of `code` for all `offenders`, or none.
void refuse(Code code, const char* what, const fs::path& path, const std::string& offenders, const char* fix) {
  if (!offenders.empty()) {
    throw InputError({.code = code, .what = what, .where = path.string(), .why = offenders, .fix = fix});
  }
}

void append(std::string& list, const std::string& part) {
  list += concat(list.empty() ? "" : "; ", part);
}

/// Which flags belong to an adapter is not in its file: one that lacks tensors may be for the other choice.
const char* fix_lacking(const LoraPlan& plan) {
  const bool tied = std::ranges::any_of(plan.targets, [](const LoraTarget& target) { return target.tied; });
  return tied ? "say --lora-tied both or --lora-tied named as when the adapter was trained (without the flag "
                "ensure_weight_tying says so); and give the base model that it was trained for"
              : "give the base model that the adapter was trained for, and its own adapter_config.json";
}

} // namespace

AdapterFile AdapterFile::open(const fs::path& directory) {
  require_files(directory);
  const fs::path config = directory / kConfigName;
  return {directory,
          LoraConfig::parse(read_text_file(config), config.string()),
          SafetensorsFile::open(directory / kWeightsName)};
}

std::vector<MatchedTensor> AdapterFile::match(const LoraPlan& plan) const {
  std::vector<MatchedTensor> matched;
  std::set<std::string> known;
  std::string missing;
  std::string shapes;
  std::string dtypes;
  for (AdapterTensor& tensor : adapter_tensors(plan)) {
    const TensorEntry* entry = file_.find(tensor.stored_name);
    known.insert(tensor.stored_name);
    if (entry == nullptr) {
      if (tensor.role == AdapterTensorRole::kOwn) {
        append(missing, concat("expected ", tensor.stored_name, " ", to_string(tensor.shape)));
      }
      continue;
    }
    if (entry->shape != tensor.shape) {
      append(shapes, concat(entry->name, ": expected ", to_string(tensor.shape), ", got ", to_string(entry->shape)));
    }
    if (!is_wide_float(entry->dtype)) {
      append(dtypes, concat(entry->name, ": expected F32, BF16, F16 or F64, got ", name(entry->dtype)));
    }
    matched.push_back({std::move(tensor), entry});
  }
  std::string unused;
  for (const TensorEntry& entry : file_.header().tensors) {
    if (!known.contains(entry.name)) {
      append(unused, concat("got ", entry.name, " ", to_string(entry.shape)));
    }
  }
  const fs::path path = directory_ / kWeightsName;
  refuse(
      Code::kMissingParameter, "an adapter lacks tensors of modules that it names", path, missing, fix_lacking(plan));
  refuse(Code::kShapeMismatch,
         "an adapter's tensors have other shapes than the model asks for",
         path,
         shapes,
         "give the base model that the adapter was trained for; r of adapter_config.json is the rank of its tensors");
  refuse(Code::kDtypeNotLoadable,
         "an adapter is stored in a dtype that cannot be trained",
         path,
         dtypes,
         "save the adapter again in float32 or bfloat16");
  refuse(Code::kUnusedTensor,
         "an adapter holds tensors that nothing of this model would use",
         path,
         unused,
         fix_lacking(plan));
  std::ranges::stable_partition(matched,
                                [](const MatchedTensor& each) { return each.tensor.role == AdapterTensorRole::kBase; });
  require_equal_copies(matched, plan);
  return matched;
}

void AdapterFile::require_equal_copies(const std::vector<MatchedTensor>& matched, const LoraPlan& plan) const {
  std::map<std::string, const MatchedTensor*> first; // of each parameter, what is not the base's
  for (const MatchedTensor& each : matched) {
    const std::string key = concat(each.tensor.role == AdapterTensorRole::kBase ? "base " : "", each.tensor.parameter);
    const auto [found, fresh] = first.emplace(key, &each);
    if (fresh) {
      continue;
    }
    std::vector<float> other = read(*each.entry);
    if (each.tensor.transposed) {
      other = transposed(other, each.entry->shape[0], each.entry->shape[1]);
    }
    if (other != read(*found->second->entry)) {
      const bool whole = std::ranges::any_of(
          plan.saved, [&](const SavedParameter& saved) { return saved.fqn == each.tensor.parameter; });
      throw InputError(
          {.code = Code::kTieConflict,
           .what = "an adapter for one tied weight is stored with different values",
           .where = concat(
               (directory_ / kWeightsName).string(), ", ", found->second->entry->name, " and ", each.entry->name),
           .why = whole ? "the weight is one, so it has one value" : "the weight is one, so its uses have one adapter",
           .fix = whole ? "give a base in which the two are separate weights; or train the adapter again with the tied "
                          "weight as one"
                        : "train the adapter again with tied adapters; or give --lora-tied named, where it is for one "
                          "use only"});
    }
  }
}

std::vector<float> AdapterFile::read(const TensorEntry& entry) const {
  std::vector<std::byte> stored(entry.end - entry.begin);
  file_.file().read_at(offset_of(entry), stored);
  std::vector<float> values(static_cast<std::size_t>(numel(entry.shape)));
  convert(stored.data(), entry.dtype, reinterpret_cast<std::byte*>(values.data()), DType::kF32, values.size());
  return values;
}

} // namespace tieshard
