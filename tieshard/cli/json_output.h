// tieshard/cli/json_output.h
//
// What every verb's --json has in common.
//
// Flow: every verb -> [this] -> console

#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "tieshard/cli/console.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/ties/tie_registry.h"

namespace tieshard::cli {

/// Keys stay in the order in which they are set.
using OrderedJson = nlohmann::ordered_json;

/// {"level", "code", "what", "where", "why", "fix"}
OrderedJson to_json(const Diagnostic& diagnostic);
OrderedJson to_json(const std::vector<Diagnostic>& findings);

/// The Diagnostic that to_json made `document` of. @throws InternalError bug when it is none
Diagnostic diagnostic_from(const OrderedJson& document);

/// {"canonical", "aliases": [{"name", "evidence": [{"kind", "text"}]}]}
OrderedJson to_json(const TieGroup& group);
OrderedJson to_json(const std::vector<TieGroup>& groups);

/// One document, indented by two blanks, and a line break. Bytes that are not UTF-8 become U+FFFD.
void print_json(const Stream& stream, const OrderedJson& document);

} // namespace tieshard::cli
