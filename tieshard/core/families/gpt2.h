// tieshard/core/families/gpt2.h
//
// The GPT-2 family (GPT2LMHeadModel): weights of linear layers are [in, out].
//
// Flow:   hf_config -> [this] -> families/family.h
// Source: transformers GPT2Config and GPT2LMHeadModel (5.24).

#pragma once

#include "tieshard/core/families/family.h"

namespace tieshard {

/// The singleton behind find_family() for this family.
const Family& gpt2_family();

} // namespace tieshard
