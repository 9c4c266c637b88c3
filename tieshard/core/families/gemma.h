// tieshard/core/families/gemma.h
//
// The Gemma family (GemmaForCausalLM): Gemma 1.
//
// Flow:   hf_config -> [this] -> families/family.h
// Source: transformers GemmaConfig and GemmaForCausalLM (5.24).

#pragma once

#include "tieshard/core/families/family.h"

namespace tieshard {

/// The singleton behind find_family() for this family.
const Family& gemma_family();

} // namespace tieshard
