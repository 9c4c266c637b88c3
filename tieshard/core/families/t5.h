// tieshard/core/families/t5.h
//
// The T5 family (T5ForConditionalGeneration): T5, its version 1.1 and Flan-T5.
//
// Flow:   hf_config -> [this] -> families/family.h
// Source: transformers T5Config and T5ForConditionalGeneration (5.24).

#pragma once

#include "tieshard/core/families/family.h"

namespace tieshard {

/// The singleton behind find_family() for this family.
const Family& t5_family();

} // namespace tieshard
