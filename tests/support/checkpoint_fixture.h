// tests/support/checkpoint_fixture.h
//
// Small checkpoint directories for tests. Files are laid out here, byte by byte, and not by the library's own writer,
// so that a fault in one does not hide a fault in the other.

#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tieshard/core/checkpoint/checkpoint.h"

namespace tieshard::testing {

/// A tensor with its bytes in row-major order.
struct FixtureTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};

/// The bytes of `values` as `Stored`, e.g. float for F32.
template <typename Stored>
std::vector<std::byte> bytes_of(const std::vector<Stored>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Stored));
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

/// An F32 tensor whose element i is start + i.
inline FixtureTensor counting(const std::string& name, const Shape& shape, float start = 0.0F) {
  std::vector<float> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = start + static_cast<float>(i);
  }
  return {.name = name, .dtype = DType::kF32, .shape = shape, .bytes = bytes_of(values)};
}

/// The same numbers as BF16. Pre: F32 values that BF16 can hold.
inline FixtureTensor as_bf16(const FixtureTensor& tensor) {
  std::vector<std::uint16_t> values(tensor.bytes.size() / 4);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&values[i], tensor.bytes.data() + i * 4 + 2, 2); // the upper half of a little-endian F32
  }
  return {.name = tensor.name, .dtype = DType::kBF16, .shape = tensor.shape, .bytes = bytes_of(values)};
}

/// A tensor of zero bytes, of any dtype.
inline FixtureTensor zeros(const std::string& name, DType dtype, const Shape& shape) {
  return {.name = name, .dtype = dtype, .shape = shape, .bytes = std::vector<std::byte>(*checked_bytes(shape, dtype))};
}

/// A directory of its own under the test's temporary one; removed with its content at the end.
class CheckpointFixture {
 public:
  explicit CheckpointFixture(const std::string& config = "{}") {
    static std::atomic<int> count = 0;
    path_ = std::filesystem::path(::testing::TempDir()) /
            ("tieshard_fixture_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "config.json") << config;
  }
  CheckpointFixture(const CheckpointFixture&) = delete;
  CheckpointFixture& operator=(const CheckpointFixture&) = delete;
  ~CheckpointFixture() {
    std::filesystem::remove_all(path_);
  }

  /// Writes one safetensors file with the tensors in the order given.
  CheckpointFixture& write(const std::vector<FixtureTensor>& tensors,
                           const std::map<std::string, std::string>& metadata = {},
                           const std::string& file = "model.safetensors") {
    Json header = Json::object();
    if (!metadata.empty()) {
      header["__metadata__"] = metadata;
    }
    std::uint64_t end = 0;
    for (const FixtureTensor& tensor : tensors) {
      const std::uint64_t begin = end;
      end += tensor.bytes.size();
      header[tensor.name] = {{"dtype", name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
      files_[tensor.name] = file;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' '); // tensors begin aligned, as the usual writers lay them
    const std::uint64_t length = text.size();
    std::ofstream out(path_ / file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8); // little-endian, as every machine that runs these tests
    out << text;
    for (const FixtureTensor& tensor : tensors) {
      out.write(reinterpret_cast<const char*>(tensor.bytes.data()), static_cast<std::streamsize>(tensor.bytes.size()));
    }
    return *this;
  }

  /// Writes model.safetensors.index.json over all files written so far.
  CheckpointFixture& write_index() {
    std::ofstream(path_ / "model.safetensors.index.json") << Json{{"metadata", Json::object()}, {"weight_map", files_}};
    return *this;
  }

  Checkpoint open() const {
    return Checkpoint::open(path_);
  }
  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  std::filesystem::path path_;
  std::map<std::string, std::string> files_;
};

/// A config.json of a Llama with vocabulary 6, width 4 and one layer; `extra` is put into the object, e.g.
/// "\"tie_word_embeddings\": true,".
inline std::string tiny_llama_config(const std::string& extra = "") {
  return "{" + extra + R"("model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 6,
    "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2})";
}

/// Every stored parameter of tiny_llama_config, in F32; the head only where `with_head`.
inline std::vector<FixtureTensor> tiny_llama_tensors(bool with_head = false) {
  const std::string layer = "model.layers.0.";
  std::vector<FixtureTensor> tensors = {
      counting("model.embed_tokens.weight", {6, 4}),
      counting(layer + "self_attn.q_proj.weight", {4, 4}),
      counting(layer + "self_attn.k_proj.weight", {4, 4}),
      counting(layer + "self_attn.v_proj.weight", {4, 4}),
      counting(layer + "self_attn.o_proj.weight", {4, 4}),
      counting(layer + "mlp.gate_proj.weight", {8, 4}),
      counting(layer + "mlp.up_proj.weight", {8, 4}),
      counting(layer + "mlp.down_proj.weight", {4, 8}),
      counting(layer + "input_layernorm.weight", {4}),
      counting(layer + "post_attention_layernorm.weight", {4}),
      counting("model.norm.weight", {4}),
  };
  if (with_head) {
    tensors.push_back(counting("lm_head.weight", {6, 4}, 100.0F));
  }
  return tensors;
}

inline std::string tied_config() {
  return tiny_llama_config(R"("tie_word_embeddings": true,)");
}
inline std::string untied_config() {
  return tiny_llama_config(R"("tie_word_embeddings": false,)");
}

} // namespace tieshard::testing
