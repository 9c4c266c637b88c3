// tieshard/core/families/name_mapping.h
//
// From the names in the files to the names of the model, where a wrapper or another class has changed them.
//
// Flow:   checkpoint, families/family.h -> [this] -> Checkpoint::renamed, ties/resolved_model.h
// Source: what torch.compile, DistributedDataParallel, FSDP, activation checkpointing and PEFT do to names;
//         transformers' base_model_prefix.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "tieshard/core/base/error.h"
#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/family.h"
#include "tieshard/core/families/parameter_table.h"

namespace tieshard {

struct NameMappingOptions {
  bool rename = true; ///< false: refuse where a mapping would be needed (`--no-rename`)
};

struct NameMapping {
  std::map<std::string, std::string> names; ///< file's name -> model's name, of the tensors whose names change
  std::vector<Diagnostic> findings;         ///< warnings wrapper-prefix, base-model-prefix
};

/// Finds out by comparing the stored names with those of the model, as sets, whether
/// - parts that a wrapper put in ("module.", "_orig_mod.") can be taken out, at the front or anywhere;
/// - one leading prefix is foreign ("base_model.model.", or any other), missing or different ("model.",
/// "transformer."). A wrapper wraps a module, so what is renamed is all that is stored of a module. Every renamed
/// tensor is one that the model knows: a parameter, what belongs to one (quantised blocks and scales), or a buffer; and
/// no two have one name. Where nothing maps, nothing is changed: the read plan then refuses what is missing. Linear in
/// the stored names.
///
/// @param table  of `family` for the config of `checkpoint`
/// @throws InputError mixed-prefixes where two sets of names would cover the same parameters, or only a part of them
///         carries the prefix; wrapper-prefix, base-model-prefix when `options.rename` is false
NameMapping find_name_mapping(const Checkpoint& checkpoint,
                              const ParameterTable& table,
                              const Family& family,
                              const NameMappingOptions& options = {});

} // namespace tieshard
