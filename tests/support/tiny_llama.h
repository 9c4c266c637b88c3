// tests/support/tiny_llama.h
//
// Writes small Llama checkpoints with reproducible random weights, in the variants that ties come in.

#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"

namespace tieshard::testing {

/// How lm_head.weight is stored.
enum class StoredHead { kAbsent, kEqual, kDifferent, kTransposed, kAlone };

struct TinyLlama {
  bool tied = true;
  StoredHead head = StoredHead::kAbsent;
  std::int64_t vocab = 37;
  std::int64_t hidden = 12;
  std::int64_t intermediate = 20;
  std::int64_t layers = 2;
  std::int64_t heads = 3;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 4;
};

inline std::vector<float> random_values(const std::string& name, std::size_t count, float scale) {
  std::seed_seq seed(name.begin(), name.end());
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values) { // uniform, the same with every standard library
    value = scale * (static_cast<float>(generator()) / 2147483648.0F - 1.0F);
  }
  return values;
}

/// A fresh directory of the running test, removed first.
inline std::filesystem::path fresh_directory(const std::string& name) {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string test = concat(info->test_suite_name(), ".", info->name(), ".", name);
  for (char& letter : test) {
    letter = letter == '/' ? '_' : letter;
  }
  const std::filesystem::path directory = std::filesystem::path(::testing::TempDir()) / ("tieshard." + test);
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  return directory;
}

/// Writes config.json and model.safetensors (F32) to a fresh directory and returns it.
inline std::filesystem::path write_tiny_llama(const std::string& name, const TinyLlama& model) {
  const std::filesystem::path directory = fresh_directory(name);
  std::ofstream(directory / "config.json")
      << concat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": )",
                model.vocab,
                ", \"hidden_size\": ",
                model.hidden,
                ", \"intermediate_size\": ",
                model.intermediate,
                ", \"num_hidden_layers\": ",
                model.layers,
                ", \"num_attention_heads\": ",
                model.heads,
                ", \"num_key_value_heads\": ",
                model.kv_heads,
                ", \"head_dim\": ",
                model.head_dim,
                R"(, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "dtype": "float32", )",
                R"("rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": )",
                model.tied ? "true" : "false",
                "}\n");
  std::map<std::string, std::vector<float>> data;
  std::vector<TensorSpec> specs;
  const auto add = [&](const std::string& fqn, Shape shape, float scale, float offset = 0) {
    std::vector<float> values = random_values(fqn, static_cast<std::size_t>(numel(shape)), scale);
    for (float& value : values) {
      value += offset;
    }
    data[fqn] = std::move(values);
    specs.push_back({.name = fqn, .dtype = DType::kF32, .shape = std::move(shape)});
  };
  const std::string embed = "model.embed_tokens.weight";
  if (model.head != StoredHead::kAlone) {
    add(embed, {model.vocab, model.hidden}, 0.5F);
  }
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = concat("model.layers.", layer, ".");
    const float scale = 1.0F / std::sqrt(static_cast<float>(model.hidden));
    add(prefix + "self_attn.q_proj.weight", {model.heads * model.head_dim, model.hidden}, scale);
    add(prefix + "self_attn.k_proj.weight", {model.kv_heads * model.head_dim, model.hidden}, scale);
    add(prefix + "self_attn.v_proj.weight", {model.kv_heads * model.head_dim, model.hidden}, scale);
    add(prefix + "self_attn.o_proj.weight", {model.hidden, model.heads * model.head_dim}, scale);
    add(prefix + "mlp.gate_proj.weight", {model.intermediate, model.hidden}, scale);
    add(prefix + "mlp.up_proj.weight", {model.intermediate, model.hidden}, scale);
    add(prefix + "mlp.down_proj.weight", {model.hidden, model.intermediate}, scale);
    add(prefix + "input_layernorm.weight", {model.hidden}, 0.2F, 1.0F);
    add(prefix + "post_attention_layernorm.weight", {model.hidden}, 0.2F, 1.0F);
  }
  add("model.norm.weight", {model.hidden}, 0.2F, 1.0F);
  switch (model.head) {
    case StoredHead::kAbsent:
      break;
    case StoredHead::kEqual:
      add("lm_head.weight", {model.vocab, model.hidden}, 0.5F);
      data["lm_head.weight"] = data[embed];
      break;
    case StoredHead::kDifferent:
    case StoredHead::kAlone:
      add("lm_head.weight", {model.vocab, model.hidden}, 0.5F);
      break;
    case StoredHead::kTransposed:
      add("lm_head.weight", {model.hidden, model.vocab}, 0.5F);
      break;
  }
  write_safetensors(directory / "model.safetensors",
                    layout_safetensors(specs, {{"format", "pt"}}),
                    [&](const TensorEntry& entry) { return std::as_bytes(std::span(data.at(entry.name))); });
  return directory;
}

} // namespace tieshard::testing
