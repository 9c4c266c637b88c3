// tieshard/core/families/gpt_oss.h
//
// The GPT-OSS family (GptOssForCausalLM): experts as the model holds them (a release stores them as MXFP4).
//
// Flow:   hf_config -> [this] -> families/family.h
// Source: transformers GptOssConfig and GptOssForCausalLM (5.24).

#pragma once

#include "tieshard/core/families/family.h"

namespace tieshard {

/// The singleton behind find_family() for this family.
const Family& gpt_oss_family();

} // namespace tieshard
