#include "tieshard/core/failures/failure.h"

namespace tieshard {
namespace {

/// Whether `name` lies inside of a numbered layer: model.layers.3.mlp.up_proj.weight. Ties are between modules that are
/// not.
bool in_numbered_layer(std::string_view name) {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    const std::size_t end = name.find('.', dot + 1);
    const std::string_view part = name.substr(dot + 1, end == std::string_view::npos ? end : end - dot - 1);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return true;
    }
  }
  return false;
}

bool about_data(const LogException& exception) {
  const std::string place = exception.place();
  return says(place, {"data"}) || says(place, {"collat"}) || says(place, {"sampler"});
}

bool while_loading(const LogException& exception) {
  return exception.came_through("load") || exception.came_through("set_module_tensor");
}

std::optional<Match> alias_looked_up(const LogException& exception) {
  const std::string key = parameter_key(exception);
  if (!key.empty() && !in_numbered_layer(key) && !about_data(exception)) {
    return Match{.parameter = key,
                 .phase = while_loading(exception) ? std::optional(Phase::kMaterialize) : std::nullopt};
  }
  const bool mapping = says(exception.message, {"FSDP2 mapping failed", "missing"}) ||
                       says(exception.message, {"found in sharded", "missing from full state dict"});
  if (mapping) {
    return Match{.parameter = parameter_in(exception.message), .phase = Phase::kMaterialize};
  }
  if (exception.type == "AssertionError" && !exception.frames.empty()) { // assert "a.weight" in state_dict
    const std::string& source = exception.frames.back().source;
    const std::string name = says(source, {"assert ", " in "}) ? parameter_in(source) : "";
    return name.empty() ? std::nullopt : std::optional(Match{.parameter = name, .phase = Phase::kMaterialize});
  }
  return std::nullopt;
}

std::optional<Match> name_looked_up(const LogException& exception) {
  const std::string key = parameter_key(exception);
  if (key.empty()) {
    return std::nullopt;
  }
  return Match{.parameter = key,
               .phase = about_data(exception)      ? std::optional(Phase::kStep)
                        : while_loading(exception) ? std::optional(Phase::kMaterialize)
                                                   : std::nullopt};
}

std::optional<Match> materialized_twice(const LogException& exception) {
  return says(exception.message, {"already materialized"})
             ? std::optional(Match{.parameter = parameter_in(exception.message)})
             : std::nullopt;
}

std::optional<Match> shapes_differ(const LogException& exception) {
  const bool shapes = says(exception.message, {"shape mismatch"}) || says(exception.message, {"size mismatch for"}) ||
                      says(exception.message, {"mismatched shapes"}) ||
                      says(exception.message, {"copying a param with shape"});
  if (!shapes) {
    return std::nullopt;
  }
  std::string parameter = parameter_in(exception.message);
  if (parameter.empty() && says(exception.message, {"tied lm_head"})) {
    parameter = "lm_head.weight";
  }
  return Match{.parameter = std::move(parameter)};
}

std::optional<Match> left_on_meta(const LogException& exception) {
  const bool meta = says(exception.message, {"Expected all tensors to be on the same device", "meta"}) ||
                    says(exception.message, {"Cannot copy out of meta tensor"}) ||
                    says(exception.message, {"meta tensor", "no data"}) ||
                    says(exception.message, {"on the meta device"}) ||
                    says(exception.message, {"should be materialized from meta device"}) ||
                    says(exception.message, {"cannot be called on meta tensors"}) ||
                    says(exception.message, {"Tensor on device", "is not on the expected device meta"});
  return meta ? std::optional(Match{.parameter = parameter_in(exception.message)}) : std::nullopt;
}

std::optional<Match> in_two_groups(const LogException& exception) {
  return says(exception.message, {"shared with a parameter already managed by another FSDP group"})
             ? std::optional(Match{.parameter = parameter_in(exception.message)})
             : std::nullopt;
}

} // namespace

const std::vector<Failure>& failures_of_ties() {
  static const std::vector<Failure> failures = {
      {.id = "tie-in-two-groups",
       .phase = Phase::kShard,
       .what = "a tied weight is put into two fully_shard units",
       .cause = "modules that share one parameter were wrapped apart; FSDP2 gives each parameter to one unit",
       .steps = {{CheckBy::kLog, "the message says that another group manages the parameter already"},
                 {CheckBy::kTied, "the names are one weight"},
                 {CheckBy::kYou,
                  "leave embedding and head to the root, or wrap them in one call: fully_shard([embed, head])"}},
       .fix_there = "wrap the modules that share the weight in one fully_shard call, or do not wrap them at all and "
                    "let the root own them; T5's four names too",
       .fix_here = "ShardPlan puts every tied weight into the root's unit, whatever shares it",
       .match = in_two_groups},
      {.id = "tie-materialized-twice",
       .phase = Phase::kMaterialize,
       .what = "a tied weight is given its bytes twice",
       .cause = "the loader takes the two names of one meta tensor for two parameters",
       .steps = {{CheckBy::kLog, "the message says that the parameter was materialized already"},
                 {CheckBy::kTied, "the names are one weight: model.lm_head.weight is model.embed_tokens.weight"},
                 {CheckBy::kStored, "both names may be stored: a loader has to map them onto one"},
                 {CheckBy::kYou,
                  "compare named_parameters(), which has the tie once, with state_dict(), which has both names"},
                 {CheckBy::kYou,
                  "go up step by step: one device without meta, then meta, then fully_shard (tieshard doctor DIR --try "
                  "does it)"}},
       .fix_there = "turn cpu_ram_efficient_loading off, or drop the alias from the state dict before loading and tie "
                    "again afterwards (model.tie_weights())",
       .fix_here = "load_shards materializes each storage once, whatever its names, and the ledger says so",
       .match = materialized_twice},
      {.id = "left-on-meta",
       .phase = Phase::kMaterialize,
       .what = "a tensor is still on the meta device when it is used",
       .cause = "a parameter got no bytes: its name is not stored (a tied alias whose tie was lost by to_empty, a "
                "wrong prefix), or a buffer was not recomputed",
       .steps = {{CheckBy::kLog, "the message names the meta device"},
                 {CheckBy::kStored, "every parameter has to be stored, itself or under a name that it is tied to"},
                 {CheckBy::kTied, "to_empty() unties: tie again after it"},
                 {CheckBy::kYou,
                  "print [n for n, t in [*model.named_parameters(), *model.named_buffers()] if t.is_meta]"},
                 {CheckBy::kYou,
                  "assert model.lm_head.weight is model.embed_tokens.weight at the end of the model's construction"}},
       .fix_there = "call model.tie_weights() after to_empty() and loading; recompute non-persistent buffers (rotary "
                    "inv_freq); load with assign=True",
       .fix_here = "load_shards leaves nothing on meta: what has no bytes is refused by name (missing-parameter, "
                   "still-on-meta)",
       .match = left_on_meta},
      {.id = "tie-shape",
       .phase = Phase::kMaterialize,
       .what = "a stored shape is not the one that the model expects",
       .cause = "a tied weight was cut on its vocabulary or stored transposed, the vocabulary was resized, or a shard "
                "was loaded as if it were the whole",
       .steps = {{CheckBy::kLog,
                  "the message has both shapes: turned around is a transposed head, smaller in one dimension a shard"},
                 {CheckBy::kHiddenDim, "a tied weight may be cut on its last dimension alone"},
                 {CheckBy::kLoads, "stored shapes are those that config.json asks for"},
                 {CheckBy::kTied, "tied names have one shape"}},
       .fix_there = "store both names as [vocab, hidden]; resize the embeddings before sharding; shard a tied weight "
                    "on its hidden dimension (shard_placement_fn)",
       .fix_here = "tieshard cuts tied weights on the last dimension only (tied-weight-on-vocab) and refuses other "
                   "shapes before it reads (shape-mismatch, tie-shape-mismatch)",
       .match = shapes_differ},
      {.id = "tied-name-missing",
       .phase = Phase::kShard,
       .what = "a tied weight is looked up under a name that no parameter has",
       .cause = "after the tie the name is an alias: named_parameters() lists the weight once, under its first name, "
                "and code that has a fixed list of names finds nothing under the other",
       .steps = {{CheckBy::kTied, "config says that the names are one weight"},
                 {CheckBy::kLog, "the name is looked up as if it were a parameter of its own"},
                 {CheckBy::kStored, "which of the names the files hold"},
                 {CheckBy::kConflict, "where both are stored, their values have to be equal, or the tie is not one"},
                 {CheckBy::kYou, "print list(model.state_dict()) and [n for n, _ in model.named_parameters()]"},
                 {CheckBy::kYou, "an untied model works and a tied one does not: then it is the alias"},
                 {CheckBy::kYou, "assert model.lm_head.weight is model.embed_tokens.weight in a test"}},
       .fix_there = "map the alias onto its canonical name before planning; with accelerate turn "
                    "cpu_ram_efficient_loading off, or set tie_word_embeddings to what the files hold",
       .fix_here = "TieRegistry answers every name with its canonical one; where the files hold two different weights "
                   "it unties them and says so",
       .match = alias_looked_up},
      {.id = "name-not-found",
       .phase = Phase::kShard,
       .what = "a name is looked up that is not there",
       .cause = "a plan, a state dict or a table has other names than the code that reads it: a wrapper's prefix, a "
                "layer or an adapter that another process has; nothing says that a tie is behind it",
       .steps = {{CheckBy::kLog, "the name is a key of what the last frame reads"},
                 {CheckBy::kStored, "whether the files hold it"},
                 {CheckBy::kTied, "whether it is tied: then it is an alias"},
                 {CheckBy::kYou, "print the keys of what is read, beside list(model.state_dict())"}},
       .fix_there =
           "take the prefix off on one of the two sides, or make the names from the model that is there; on all "
           "ranks the same",
       .fix_here =
           "tieshard names the parameter that is missing or unknown before it reads a byte, with the closest name "
           "that is there",
       .match = name_looked_up}};
  return failures;
}

} // namespace tieshard
