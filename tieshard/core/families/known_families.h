// tieshard/core/families/known_families.h
//
// The list of all families: each has its file of the same name, which defines its singleton. A new family is a file and
// a line here.
//
// Flow: one file a family -> [this] -> family.cpp

#pragma once

#include "tieshard/core/families/family.h"

// clang-format off
#define TIESHARD_FAMILIES(X) \
  X(llama) \
  X(mistral) \
  X(qwen2) \
  X(qwen2_moe) \
  X(qwen3) \
  X(qwen3_moe) \
  X(mixtral) \
  X(phi3) \
  X(gemma) \
  X(gemma2) \
  X(gemma3_text) \
  X(gpt_oss) \
  X(gpt2) \
  X(t5) \
  X(albert)
// clang-format on

namespace tieshard {

/// `const Family& llama_family();` and so on: the singletons behind find_family().
#define TIESHARD_DECLARE_FAMILY(name) const Family& name##_family();
TIESHARD_FAMILIES(TIESHARD_DECLARE_FAMILY)
#undef TIESHARD_DECLARE_FAMILY

} // namespace tieshard
