// tests/support/adapter_fixture.h
//
// Small PEFT adapter directories for tests, written byte by byte and not by the library's own writer.

#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard::testing {

/// adapter_config.json as PEFT writes it, with `extra` put into the object.
inline std::string adapter_config(const std::string& targets, const std::string& extra = "", int rank = 2) {
  return R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "inference_mode": true, "lora_alpha": 6, )" + extra +
         R"("r": )" + std::to_string(rank) + R"(, "target_modules": )" + targets + "}";
}

/// Writes adapter_config.json and adapter_model.safetensors beside each other; gives the directory.
inline std::filesystem::path write_adapter(CheckpointFixture& fixture,
                                           const std::string& config,
                                           const std::vector<FixtureTensor>& tensors) {
  std::filesystem::remove(fixture.path() / "config.json");
  std::ofstream(fixture.path() / "adapter_config.json") << config;
  fixture.write(tensors, {{"format", "pt"}}, "adapter_model.safetensors");
  return fixture.path();
}

/// A and B of one linear module of tiny_llama_config, [2, in] and [out, 2].
inline std::vector<FixtureTensor> lora_pair(const std::string& module, std::int64_t in, std::int64_t out) {
  const std::string name = "base_model.model." + module;
  return {counting(name + ".lora_A.weight", {2, in}, 1.0F), counting(name + ".lora_B.weight", {out, 2}, -3.0F)};
}

} // namespace tieshard::testing
