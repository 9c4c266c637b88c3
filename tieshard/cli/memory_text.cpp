#include "tieshard/cli/memory_text.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tieshard/cli/model_view.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {
namespace {

struct Term {
  const char* name;    ///< in JSON
  const char* meaning; ///< for a person
  std::uint64_t bytes;
};

std::vector<Term> terms_of(const TrainingMemory& memory) {
  return {{.name = "process", .meaning = "the program and its libraries", .bytes = memory.process},
          {.name = "shards", .meaning = "shards of parameters", .bytes = memory.shards},
          {.name = "moments", .meaning = "AdamW's moments of the shards", .bytes = memory.moments},
          {.name = "gradients", .meaning = "gradients of the shards", .bytes = memory.gradients},
          {.name = "whole_parameters",
           .meaning = "whole parameters: root, and units in flight",
           .bytes = memory.whole_parameters},
          {.name = "whole_gradients",
           .meaning = "whole gradients: root, and units in flight",
           .bytes = memory.whole_gradients},
          {.name = "activations", .meaning = "activations", .bytes = memory.activations},
          {.name = "loss", .meaning = "logits of one piece", .bytes = memory.loss},
          {.name = "holes", .meaning = "holes of the heap", .bytes = memory.holes}};
}

std::string why_not(const HfConfig& config) {
  return concat("no formula says what a forward of ", architecture_name(config), " with this config keeps");
}

} // namespace

void print_training_memory(const HfConfig& config,
                           const TrainingStep& step,
                           const TrainingPrediction& prediction,
                           const Stream& out) {
  const std::optional<TrainingMemory>& memory = prediction.memory;
  if (!memory) {
    Table table({left(), left()});
    table.add({"training", concat("no prediction of a rank's peak: ", why_not(config))});
    table.print(out);
    return;
  }
  const std::string title = concat("peak while training (",
                                   format_count(step.batch),
                                   " x ",
                                   format_count(step.sequence),
                                   " tokens, ",
                                   name(step.compute_dtype),
                                   step.reshard_after_forward ? " compute)" : " compute, layers stay whole)");
  Table table({left(title), right("largest rank")});
  for (const Term& term : terms_of(*memory)) {
    table.add({term.meaning, format_bytes(term.bytes)});
  }
  table.add({prediction.with_activations ? "resident at most" : "resident, and what the layers keep besides",
             format_bytes(memory->total())});
  table.print(out);
  if (!prediction.with_activations) {
    out.text << "activations of the layers are not in it: " << why_not(config) << "\n";
  }
}

OrderedJson training_document(const HfConfig& config, const TrainingStep& step, const TrainingPrediction& prediction) {
  const std::optional<TrainingMemory>& memory = prediction.memory;
  OrderedJson document{{"seq", step.sequence},
                       {"batch", step.batch},
                       {"compute_dtype", name(step.compute_dtype)},
                       {"reshard_after_forward", step.reshard_after_forward},
                       {"peak_bytes", nullptr},
                       {"terms", nullptr}};
  if (!prediction.with_activations) {
    document["peak_without_activations_bytes"] = nullptr;
    document["why"] = why_not(config);
  }
  if (!memory) {
    return document;
  }
  document[prediction.with_activations ? "peak_bytes" : "peak_without_activations_bytes"] = memory->total();
  OrderedJson terms = OrderedJson::object();
  for (const Term& term : terms_of(*memory)) {
    terms[term.name] = term.bytes;
  }
  document["terms"] = terms;
  return document;
}

} // namespace tieshard::cli
