// tieshard/core/families/albert.h
//
// The ALBERT family (AlbertForMaskedLM): all layers of a group are one module.
//
// Flow:   hf_config -> [this] -> families/family.h
// Source: transformers AlbertConfig and AlbertForMaskedLM (5.24).

#pragma once

#include "tieshard/core/families/family.h"

namespace tieshard {

/// The singleton behind find_family() for this family.
const Family& albert_family();

} // namespace tieshard
