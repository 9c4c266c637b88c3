// tests/parity/reference.h
//
// What transformers computed: a directory that tests/reference/make_reference.py wrote.

#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tieshard/core/checkpoint/safetensors_file.h"
#include "tieshard/runtime/models/language_model.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard::testing {

// Twice the distance of float32 from float64 that the references were measured to have: absolute, on every element.
inline constexpr double kLogitsTolerance = 2.8e-5;
inline constexpr double kLossTolerance = 2e-6;
inline constexpr double kGradientTolerance = 1.2e-5;
inline constexpr double kParameterTolerance = 3.2e-6;
inline constexpr double kGradientFloor = 1e-5; // AdamW makes a full step of a rounding-size gradient

class Reference {
 public:
  /// TIESHARD_REFERENCES may name another directory of references of the same form.
  explicit Reference(const std::string& name) : directory_(root() / name), file_(open()) {}

  at::Tensor tensor(const std::string& name) const {
    const TensorEntry* entry = file_.find(name);
    if (entry == nullptr) {
      throw std::runtime_error("the reference has no " + name);
    }
    at::Tensor values = at::empty(entry->shape, to_torch(entry->dtype));
    file_.file().read_at(file_.header().data_start + entry->begin,
                         {static_cast<std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
    return values;
  }
  bool has(const std::string& name) const {
    return file_.find(name) != nullptr;
  }
  const std::filesystem::path& directory() const {
    return directory_;
  }

  /// The logits of `model` for the reference's batch.
  at::Tensor logits_of(LanguageModel& model) const {
    const at::NoGradGuard no_grad;
    return model.forward(tensor("input_ids"),
                         {.decoder_ids_BT = has("decoder_input_ids") ? tensor("decoder_input_ids") : at::Tensor()});
  }

 private:
  static std::filesystem::path root() {
    const char* other = std::getenv("TIESHARD_REFERENCES");
    return other == nullptr ? TIESHARD_REFERENCE_DIR : other;
  }
  SafetensorsFile open() const {
    return SafetensorsFile::open(directory_ / "reference.safetensors");
  }

  std::filesystem::path directory_;
  SafetensorsFile file_;
};

/// Every case of tests/reference/families.py.
inline const std::vector<std::string>& reference_names() {
  static const std::vector<std::string> names{"llama_tied",     "llama_tied_bf16",
                                              "llama_tied_f16", "llama_tied_v4config",
                                              "llama_untied",   "llama3_rope",
                                              "mistral",        "qwen2_tied",
                                              "qwen2_window",   "qwen3_tied",
                                              "qwen3_moe",      "mixtral",
                                              "phi3_tied",      "qwen3_moe_unnormalised",
                                              "gemma_tied",     "gemma2",
                                              "gemma3_text",    "gpt2_tied",
                                              "t5_tied",        "t5_gated",
                                              "gpt_oss_untied", "gpt_oss_tied",
                                              "gpt_oss_mxfp4",  "qwen2_moe",
                                              "qwen2_moe_tied"};
  return names;
}

} // namespace tieshard::testing
