#include "tieshard/cli/demo_checkpoint.h"

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/file.h"
#include "tieshard/core/checkpoint/safetensors_writer.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/io/convert.h"

namespace tieshard::cli {
namespace {

constexpr double kInitializerRange = 0.02;

std::string config_text(const DemoModel& model) {
  const nlohmann::ordered_json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"dtype", "bfloat16"},
      {"head_dim", model.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", model.hidden},
      {"initializer_range", kInitializerRange},
      {"intermediate_size", model.intermediate},
      {"max_position_embeddings", model.context},
      {"mlp_bias", false},
      {"model_type", "llama"},
      {"num_attention_heads", model.heads},
      {"num_hidden_layers", model.layers},
      {"num_key_value_heads", model.key_value_heads},
      {"rms_norm_eps", 1e-5},
      {"rope_parameters", {{"rope_theta", 10000.0}, {"rope_type", "default"}}},
      {"tie_word_embeddings", true},
      {"vocab_size", model.vocab},
  };
  return config.dump(2) + "\n";
}

// Box and Muller's way, because std::normal_distribution gives other numbers with every standard library.
class NormalNumbers {
 public:
  explicit NormalNumbers(std::uint64_t seed) : engine_(seed) {}

  float next() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return static_cast<float>(kInitializerRange * radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }

 private:
  // In [0, 1), from the top 53 bits.
  double uniform() {
    return static_cast<double>(engine_() >> 11U) * 0x1.0p-53;
  }

  std::mt19937_64 engine_;
};

std::vector<std::byte> bf16_values(const TensorEntry& tensor, NormalNumbers& numbers) {
  const bool is_norm = tensor.shape.size() == 1;
  std::vector<float> values(static_cast<std::size_t>(numel(tensor.shape)));
  for (float& value : values) {
    value = is_norm ? 1.0F : numbers.next();
  }
  std::vector<std::byte> bytes(tensor.end - tensor.begin);
  convert(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, bytes.data(), DType::kBF16, values.size());
  return bytes;
}

} // namespace

void write_demo_checkpoint(const std::filesystem::path& directory, const DemoModel& model) {
  const std::string config = config_text(model);
  write_text_file(directory / "config.json", config);
  const HfConfig parsed = HfConfig::parse(config, "config.json");
  const Family& family = require_family(parsed);
  const std::vector<FamilyTie> ties = family.ties(parsed);
  std::vector<TensorSpec> tensors;
  for (const ParameterInfo& parameter : family.table(parsed)) {
    const auto is_tied_away = [&](const FamilyTie& tie) { return tie.alias == parameter.fqn; };
    if (std::none_of(ties.begin(), ties.end(), is_tied_away)) {
      tensors.push_back({.name = parameter.fqn, .dtype = parameter.dtype, .shape = parameter.shape});
    }
  }
  NormalNumbers numbers(model.seed);
  std::vector<std::byte> bytes;
  write_safetensors(directory / "model.safetensors",
                    layout_safetensors(tensors, {{"format", "pt"}}),
                    [&](const TensorEntry& tensor) -> std::span<const std::byte> {
                      bytes = bf16_values(tensor, numbers);
                      return bytes;
                    });
}

} // namespace tieshard::cli
