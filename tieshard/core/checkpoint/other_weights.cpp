#include "tieshard/core/checkpoint/other_weights.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/base/json.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/checkpoint/adapter_names.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdapterConfig = "adapter_config.json";

/// A path as one word of a shell command.
std::string quoted(const std::string& path) {
  std::string text = "'";
  for (const char c : path) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

/// "model" for "model/", so that a name can be put behind it.
std::string without_slash(const fs::path& directory) {
  std::string path = directory.string();
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

/// A text field of a JSON file; empty when the file cannot be read or has none. What is wrong with it is not the point
/// here: the directory is refused anyway.
std::string text_field(const fs::path& path, std::string_view key) {
  try {
    const Json document = parse_json(read_text_file(path), path.string());
    const Json& field = key == "architectures" ? document.at(key).at(0) : document.at(key);
    return field.get<std::string>();
  } catch (const Error&) {
    return "";
  } catch (const Json::exception&) {
    return "";
  }
}

bool is_identifier(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

bool is_adapter(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return name == kAdapterConfig || name == "adapter_model.safetensors" || name == "adapter_model.bin";
  });
}

/// pytorch_model.bin, its shards and its index.
bool is_pickled(const std::string& name) {
  return name.starts_with("pytorch_model") && (name.ends_with(".bin") || name.ends_with(".bin.index.json"));
}

std::string base_model_of(const fs::path& directory) {
  const std::string base = text_field(directory / kAdapterConfig, "base_model_name_or_path");
  return base.empty() ? "not named by adapter_config.json" : concat(format_name(base), " by adapter_config.json");
}

/// `expected` says what was looked for and what was found.
[[noreturn]] void refuse_adapter(const fs::path& directory, const std::string& expected) {
  const std::string path = without_slash(directory);
  throw InputError(
      {.code = Code::kPeftAdapter,
       .what = "the directory holds an adapter, not a model",
       .where = directory.string(),
       .why = concat(expected, "; the base model (base_model_name_or_path) is ", base_model_of(directory)),
       .fix = concat("pass the base model, or merge the adapter into it and pass that: tieshard merge-adapter BASE ",
                     quoted(path),
                     " ",
                     quoted(path + "-merged"),
                     "; one that is no LoRA: python -c \"import sys; from peft import AutoPeftModelForCausalLM as M; "
                     "M.from_pretrained(sys.argv[1]).merge_and_unload().save_pretrained(sys.argv[2])\" ",
                     quoted(path),
                     " ",
                     quoted(path + "-merged"))});
}

[[noreturn]] void refuse_pickled(const fs::path& directory, const std::vector<std::string>& names) {
  const std::string path = without_slash(directory);
  const std::string architecture = text_field(directory / "config.json", "architectures");
  throw InputError(
      {.code = Code::kNoWeights,
       .what = "the directory holds no safetensors weights",
       .where = directory.string(),
       .why = concat("expected model.safetensors or model.safetensors.index.json, got ",
                     format_names(names),
                     "; a .bin file is a Python pickle, which may run code when it is opened"),
       .fix = concat("if you trust its origin, convert it: python -c \"import sys; from transformers import ",
                     is_identifier(architecture) ? architecture : "AutoModelForCausalLM",
                     " as M; M.from_pretrained(sys.argv[1], dtype='auto').save_pretrained(sys.argv[2])\" ",
                     quoted(path),
                     " ",
                     quoted(path + "-safetensors"))});
}

} // namespace

void refuse_other_weights(const fs::path& directory) {
  const std::vector<std::string> names = list_directory(directory);
  if (is_adapter(names)) {
    refuse_adapter(directory, concat("expected model.safetensors or its index, got ", format_names(names)));
  }
  if (std::ranges::any_of(names, is_pickled)) {
    refuse_pickled(directory, names);
  }
}

void refuse_adapter_weights(const fs::path& directory, const std::vector<StoredTensor>& tensors) {
  if (are_adapters_alone(tensors)) {
    const auto adapter = std::ranges::find_if(tensors, [](const auto& each) { return is_adapter_name(each.name); });
    refuse_adapter(directory,
                   concat("expected the weights of a model, got ",
                          tensors.size(),
                          tensors.size() == 1 ? " tensor" : " tensors",
                          " without any that an adapter is beside, such as ",
                          format_name(adapter->name)));
  }
}

std::optional<Diagnostic> adapter_beside_model(const fs::path& directory) {
  const std::vector<std::string> names = list_directory(directory);
  if (!is_adapter(names)) {
    return std::nullopt;
  }
  return Diagnostic{
      .level = Level::kWarning,
      .code = Code::kPeftAdapter,
      .what = "an adapter beside a model is not applied",
      .where = directory.string(),
      .why = concat("the model's own weights are loaded without it; its base model is ", base_model_of(directory)),
      .fix =
          "move the adapter elsewhere, or put it on the model with --adapter, or merge it with tieshard merge-adapter"};
}

} // namespace tieshard
