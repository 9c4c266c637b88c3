// tests/cli/session.h
//
// One command line of the program `tieshard`, run in this process with its output in strings.
//
// Flow: tests/cli -> [this] -> cli/app.h

#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tieshard/cli/app.h"

#include "tests/support/checkpoint_fixture.h"

namespace tieshard::testing {

/// What a user gets back.
struct Answer {
  int status = 0;
  std::string out{};
  std::string err{};

  nlohmann::json json() const {
    return nlohmann::json::parse(out);
  }
};

/// Runs `tieshard <words>`; neither stream is a terminal.
inline Answer run(const std::vector<std::string>& words) {
  std::vector<const char*> arguments{"tieshard"};
  for (const std::string& word : words) {
    arguments.push_back(word.c_str());
  }
  std::ostringstream out;
  std::ostringstream err;
  const int status = cli::run_tieshard(
      static_cast<int>(arguments.size()), arguments.data(), {.out = {.text = out}, .err = {.text = err}});
  return {.status = status, .out = out.str(), .err = err.str()};
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
