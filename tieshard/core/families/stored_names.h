// tieshard/core/families/stored_names.h
//
// Wrappers in the names of a model whose architecture is not known: the stored names themselves have to tell.
//
// Flow: checkpoint -> [this] -> Checkpoint::renamed, ties/resolved_model.h

#pragma once

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/name_mapping.h"

namespace tieshard {

/// Finds the parts of known wrappers that can be taken out of the stored names: "base_model.model." and wrapper_parts.h
/// in front of all of them, wrapper_parts.h in all that are stored of a module. Integers, which are no parameters,
/// may stand beside a wrapper's names.
///
/// "module." and "base_layer." inside some names of a module only are taken for the model's own: a model may well have
/// a module of that name, and PEFT puts adapters beside a base_layer. No other prefix is foreign: without a table there
/// is nothing to compare it with.
/// @throws InputError mixed-prefixes where a wrapper's part stands in front of, or (another than these two) inside,
/// some
///         names of a module but not all, or two names would become one; wrapper-prefix when `options.rename` is false
NameMapping find_wrapper_mapping(const Checkpoint& checkpoint, const NameMappingOptions& options = {});

} // namespace tieshard
