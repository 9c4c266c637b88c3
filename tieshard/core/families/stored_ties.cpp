#include "tieshard/core/families/stored_ties.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

using Embeddings = std::vector<const StoredTensor*>; ///< of one encoder and decoder, that of both first

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kShared = "shared.weight";
constexpr std::string_view kEmbedTokens = "embed_tokens.weight";
constexpr std::string_view kWordEmbeddings = "word_embeddings.weight";

/// Heads of other names. The first part tells that the class has the head, the second is what it shares.
struct HeadOfParts {
  std::string_view part;
  std::string_view head;
};
constexpr std::array<HeadOfParts, 3> kHeadsOfParts = {{
    {"cls.predictions.transform.dense.weight", "cls.predictions.decoder.weight"}, // BERT
    {"lm_head.dense.weight", "lm_head.decoder.weight"},                           // RoBERTa
    {"vocab_projector.bias", "vocab_projector.weight"},                           // DistilBERT
}};

bool says_tied(const HfConfig& config) {
  return config.tie_word_embeddings() && config.tie_word_embeddings()->value;
}

/// "model.norm" of "model.norm.weight"; empty for a name without a dot.
std::string_view parent(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

/// Whether `leaf` is all of `name`, or what stands behind a dot of it.
bool is_named(std::string_view name, std::string_view leaf) {
  return name.ends_with(leaf) && (name.size() == leaf.size() || name[name.size() - leaf.size() - 1] == '.');
}

/// The only stored tensor of those last parts; null when there is none or several.
const StoredTensor* only_named(const Checkpoint& checkpoint, std::string_view leaf) {
  const StoredTensor* found = nullptr;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (is_named(tensor.name, leaf)) {
      if (found != nullptr) {
        return nullptr;
      }
      found = &tensor;
    }
  }
  return found;
}

/// The stored matrices of one shape that are called as the embeddings of one encoder and decoder are. Fewer than two:
/// none.
Embeddings embeddings_in(const Checkpoint& checkpoint, std::string_view module) {
  Embeddings found;
  for (const std::string_view side : {"", "encoder.", "decoder."}) {
    for (const std::string_view leaf : {kShared, kEmbedTokens, kWordEmbeddings}) {
      const StoredTensor* const tensor = checkpoint.find(concat(module, side, leaf));
      const bool fits = tensor != nullptr && tensor->shape.size() == 2 && (side.empty() || leaf != kShared) &&
                        (found.empty() || found.front()->shape == tensor->shape);
      if (fits) {
        found.push_back(tensor);
        break;
      }
    }
  }
  return found.size() < 2 ? Embeddings{} : found;
}

/// Those of every encoder and decoder.
std::vector<Embeddings> shared_embeddings(const Checkpoint& checkpoint) {
  std::vector<std::string> modules;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    for (const std::string_view side : {"encoder.", "decoder."}) {
      for (const std::string_view leaf : {kEmbedTokens, kWordEmbeddings}) {
        if (is_named(tensor.name, leaf) && is_named(tensor.name, concat(side, leaf))) {
          modules.push_back(tensor.name.substr(0, tensor.name.size() - side.size() - leaf.size()));
        }
      }
    }
  }
  std::ranges::sort(modules);
  modules.erase(std::unique(modules.begin(), modules.end()), modules.end());
  std::vector<Embeddings> all;
  for (const std::string& module : modules) {
    if (Embeddings embeddings = embeddings_in(checkpoint, module); !embeddings.empty()) {
      all.push_back(std::move(embeddings));
    }
  }
  return all;
}

/// The one input embedding; null where the names show none or several.
const StoredTensor* input_embedding(const Checkpoint& checkpoint, const std::vector<Embeddings>& shared) {
  if (!shared.empty()) {
    return shared.size() == 1 ? shared.front().front() : nullptr;
  }
  for (const std::string_view leaf : {kShared, kEmbedTokens, std::string_view("wte.weight"), kWordEmbeddings}) {
    const StoredTensor* const embedding = only_named(checkpoint, leaf);
    if (embedding != nullptr && embedding->shape.size() == 2) {
      return embedding;
    }
  }
  return nullptr;
}

/// What stands before the base model in an embedding's name: "language_model." of
/// "language_model.model.embed_tokens.weight", nothing of "model.language_model.embed_tokens.weight".
std::string_view before_base_model(std::string_view embedding) {
  for (const std::string_view base : {"model.", "transformer."}) {
    for (std::size_t at = embedding.find(base); at != std::string_view::npos; at = embedding.find(base, at + 1)) {
      if (at == 0 || embedding[at - 1] == '.') {
        return embedding.substr(0, at);
      }
    }
  }
  return {};
}

/// The head that is stored beside one of the modules around the embedding, innermost first.
const StoredTensor* stored_head(const Checkpoint& checkpoint, const StoredTensor& embedding) {
  for (std::string_view module = parent(embedding.name); !module.empty();) {
    module = parent(module);
    const std::string around = module.empty() ? std::string() : concat(module, ".");
    if (const StoredTensor* const head = checkpoint.find(concat(around, kHead))) {
      return head;
    }
    for (const HeadOfParts& each : kHeadsOfParts) {
      const StoredTensor* const head = checkpoint.find(concat(around, each.head));
      if (head != nullptr && head->shape == embedding.shape) {
        return head;
      }
    }
  }
  return nullptr;
}

/// The name of the head, stored or not; nothing where the class has none.
std::optional<std::string> head_of(const Checkpoint& checkpoint, const StoredTensor& embedding) {
  if (const StoredTensor* const head = stored_head(checkpoint, embedding)) {
    return head->name;
  }
  for (const HeadOfParts& each : kHeadsOfParts) {
    if (const StoredTensor* const part = only_named(checkpoint, each.part)) {
      return concat(std::string_view(part->name).substr(0, part->name.size() - each.part.size()), each.head);
    }
  }
  const std::string& architecture = checkpoint.config().architecture();
  if (architecture.starts_with("Whisper") && architecture.ends_with("ForConditionalGeneration")) {
    return concat(before_base_model(embedding.name), "proj_out.weight");
  }
  for (const std::string_view with_head : {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"}) {
    if (architecture.ends_with(with_head)) {
      return concat(before_base_model(embedding.name), kHead);
    }
  }
  return std::nullopt;
}

} // namespace

std::vector<FamilyTie> ties_of_stored(const Checkpoint& checkpoint) {
  std::vector<FamilyTie> ties;
  const std::vector<Embeddings> shared = shared_embeddings(checkpoint);
  for (const Embeddings& embeddings : shared) {
    for (std::size_t i = 1; i < embeddings.size(); ++i) {
      ties.push_back({.canonical = embeddings.front()->name, .alias = embeddings[i]->name, .always = true});
    }
  }
  const StoredTensor* const embedding = says_tied(checkpoint.config()) ? input_embedding(checkpoint, shared) : nullptr;
  if (const auto head = embedding == nullptr ? std::nullopt : head_of(checkpoint, *embedding)) {
    ties.push_back({.canonical = embedding->name, .alias = *head});
  }
  return ties;
}

std::string lone_shared_embedding(const Checkpoint& checkpoint) {
  const StoredTensor* const shared = only_named(checkpoint, kShared);
  if (shared == nullptr) {
    return "";
  }
  const std::string_view module = std::string_view(shared->name).substr(0, shared->name.size() - kShared.size());
  if (!embeddings_in(checkpoint, module).empty()) {
    return "";
  }
  const auto has = [&](std::string_view side) {
    const std::string prefix = concat(module, side);
    return std::ranges::any_of(checkpoint.tensors(),
                               [&prefix](const StoredTensor& tensor) { return tensor.name.starts_with(prefix); });
  };
  return has("encoder.") || has("decoder.") ? shared->name : std::string();
}

} // namespace tieshard
