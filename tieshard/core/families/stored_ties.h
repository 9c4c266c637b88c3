// tieshard/core/families/stored_ties.h
//
// Embeddings and heads that stored names show, of a model whose architecture is not known.
//
// Flow:   checkpoint -> [this] -> stored_table.cpp, ties/tie_rules.cpp, ties/resolved_model.cpp
// Source: `_tied_weights_keys` of transformers' models, by the names that many of them share.

#pragma once

#include <string>
#include <vector>

#include "tieshard/core/checkpoint/checkpoint.h"
#include "tieshard/core/families/family.h"

namespace tieshard {

/// The names that may be one weight, each alias once:
/// - `always`: the embeddings of an encoder and a decoder, of one shape, stored beside each other (X.shared,
///   X.encoder.embed_tokens, X.decoder.embed_tokens). The first in this order that is stored is the canonical one. What
///   the tie flag says of them is for the caller to weigh; so is whether their bytes are equal.
/// - the head of the one input embedding, only where config.json says tied. A head that is not stored is there by the
///   rest of it (BERT's cls.predictions.transform) or by the class (ForCausalLM, LMHeadModel,
///   ForConditionalGeneration): "language_model.lm_head.weight" for "language_model.model.embed_tokens.weight". Other
///   classes have none.
std::vector<FamilyTie> ties_of_stored(const Checkpoint& checkpoint);

/// "shared.weight" where an encoder and a decoder are stored with that embedding alone: those of their own are not
/// known to be there. Empty otherwise.
std::string lone_shared_embedding(const Checkpoint& checkpoint);

} // namespace tieshard
