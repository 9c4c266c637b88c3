#include "tieshard/core/families/stored_table.h"

#include <array>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::int64_t kBlockBytes = 16; ///< of MXFP4: 32 values of 4 bits

bool is_fp8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

std::string quantization_method(const HfConfig& config) {
  const auto quantization = config.json().find("quantization_config");
  if (quantization == config.json().end() || !quantization->is_object()) {
    return "";
  }
  const auto method = quantization->find("quant_method");
  return method == quantization->end() || !method->is_string() ? "" : method->get<std::string>();
}

/// "model.norm" of "model.norm.weight"; empty for a name without a dot.
std::string_view parent(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

/// True for the scale of an FP8 weight that is stored as well.
bool is_fp8_scale(const Checkpoint& checkpoint, std::string_view name) {
  constexpr std::array<std::string_view, 2> kOfTensor = {"_scale_inv", "_scale"};
  for (const std::string_view suffix : kOfTensor) {
    if (name.ends_with(suffix)) {
      const StoredTensor* const values = checkpoint.find(name.substr(0, name.size() - suffix.size()));
      if (values != nullptr && is_fp8(values->dtype)) {
        return true;
      }
    }
  }
  if (!name.ends_with(".input_scale")) {
    return false;
  }
  const StoredTensor* const values = checkpoint.find(std::string(parent(name)) + ".weight");
  return values != nullptr && is_fp8(values->dtype);
}

/// X [..., in, out] for X_blocks [..., out, in/32, 16]; nothing for another tensor.
std::optional<ParameterInfo> of_mxfp4_blocks(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  constexpr std::string_view kSuffix = "_blocks";
  const std::size_t rank = tensor.shape.size();
  if (!tensor.name.ends_with(kSuffix) || tensor.dtype != DType::kU8 || rank < 3 || tensor.shape.back() != kBlockBytes) {
    return std::nullopt;
  }
  const std::string name = tensor.name.substr(0, tensor.name.size() - kSuffix.size());
  if (checkpoint.find(name) != nullptr) {
    return std::nullopt;
  }
  Shape shape(tensor.shape.begin(), tensor.shape.end() - 3);
  shape.push_back(tensor.shape[rank - 2] * kBlockBytes * 2);
  shape.push_back(tensor.shape[rank - 3]);
  return ParameterInfo{.fqn = name, .shape = std::move(shape), .dtype = DType::kBF16};
}

std::optional<ParameterInfo> parameter_of(const Checkpoint& checkpoint, const StoredTensor& tensor, bool mxfp4) {
  if (is_wide_float(tensor.dtype)) {
    return is_fp8_scale(checkpoint, tensor.name)
               ? std::nullopt
               : std::optional(ParameterInfo{.fqn = tensor.name, .shape = tensor.shape, .dtype = tensor.dtype});
  }
  if (is_fp8(tensor.dtype)) {
    return ParameterInfo{.fqn = tensor.name, .shape = tensor.shape, .dtype = DType::kBF16};
  }
  return mxfp4 ? of_mxfp4_blocks(checkpoint, tensor) : std::nullopt;
}

bool says_tied(const HfConfig& config) {
  return config.tie_word_embeddings() && config.tie_word_embeddings()->value;
}

/// The only stored tensor of that last part, e.g. "embed_tokens.weight"; null when there is none or several.
const StoredTensor* only_named(const Checkpoint& checkpoint, std::string_view leaf) {
  const StoredTensor* found = nullptr;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const std::string_view name = tensor.name;
    const bool named =
        name.ends_with(leaf) && (name.size() == leaf.size() || name[name.size() - leaf.size() - 1] == '.');
    if (named && tensor.shape.size() == 2) {
      if (found != nullptr) {
        return nullptr;
      }
      found = &tensor;
    }
  }
  return found;
}

/// What stands before the base model in an embedding's name: "language_model." of
/// "language_model.model.embed_tokens.weight", nothing of "model.language_model.embed_tokens.weight".
std::string_view before_base_model(std::string_view embedding, std::string_view leaf) {
  const std::string_view path = embedding.substr(0, embedding.size() - leaf.size());
  for (const std::string_view base : {"model.", "transformer."}) {
    for (std::size_t at = path.find(base); at != std::string_view::npos; at = path.find(base, at + 1)) {
      if (at == 0 || path[at - 1] == '.') {
        return path.substr(0, at);
      }
    }
  }
  return path;
}

/// The head that is stored beside one of the modules around the embedding, innermost first.
const StoredTensor* stored_head(const Checkpoint& checkpoint, std::string_view embedding) {
  for (std::string_view module = parent(embedding); !module.empty();) {
    module = parent(module);
    const std::string name = module.empty() ? std::string(kHead) : concat(module, ".", kHead);
    if (const StoredTensor* head = checkpoint.find(name)) {
      return head;
    }
  }
  return nullptr;
}

} // namespace

std::optional<FamilyTie> embedding_tie_of_stored(const Checkpoint& checkpoint) {
  constexpr std::array<std::string_view, 4> kLeaves = {
      "shared.weight", "embed_tokens.weight", "wte.weight", "word_embeddings.weight"};
  for (const std::string_view leaf : kLeaves) {
    const StoredTensor* const embedding = only_named(checkpoint, leaf);
    if (embedding == nullptr) {
      continue;
    }
    if (const StoredTensor* const head = stored_head(checkpoint, embedding->name)) {
      return FamilyTie{.canonical = embedding->name, .alias = head->name};
    }
    return FamilyTie{.canonical = embedding->name, .alias = concat(before_base_model(embedding->name, leaf), kHead)};
  }
  return std::nullopt;
}

ParameterTable table_of_stored(const Checkpoint& checkpoint) {
  const bool mxfp4 = quantization_method(checkpoint.config()) == "mxfp4";
  const auto tie = says_tied(checkpoint.config()) ? embedding_tie_of_stored(checkpoint) : std::nullopt;
  ParameterTable table;
  std::optional<ParameterInfo> head;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    std::optional<ParameterInfo> parameter = parameter_of(checkpoint, tensor, mxfp4);
    if (!parameter) {
      continue;
    }
    if (tie && tensor.name == tie->alias) { // behind the embedding, which owns the storage
      head = std::move(parameter);
      continue;
    }
    if (tie && tensor.name == tie->canonical && !head) {
      head = ParameterInfo{.fqn = tie->alias, .shape = parameter->shape, .dtype = parameter->dtype};
    }
    table.push_back(*std::move(parameter));
  }
  if (head) {
    table.push_back(*std::move(head));
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i].identity = i + 1;
  }
  return table;
}

} // namespace tieshard
