#include "tieshard/cli/inspect.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include <CLI/App.hpp>

#include "tieshard/cli/decoder_text.h"
#include "tieshard/cli/flags.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/cli/model_view.h"
#include "tieshard/cli/name_pattern.h"
#include "tieshard/cli/saved_as_model.h"
#include "tieshard/cli/saved_text.h"
#include "tieshard/cli/table.h"
#include "tieshard/cli/tensor_values.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/saved_model.h"

namespace tieshard::cli {
namespace {

std::uint64_t stored_bytes(const Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    bytes += tensor.bytes;
  }
  return bytes;
}

// Elements of all parameters, each storage once.
std::int64_t parameter_count(const ResolvedModel& view) {
  std::int64_t count = 0;
  for (const ParameterInfo& parameter : view.table) {
    count += view.ties.is_alias(parameter.fqn) ? 0 : numel(parameter.shape);
  }
  return count;
}

// "BF16", or "BF16 271, F32 1" where tensors differ.
std::string dtypes_text(const Checkpoint& checkpoint) {
  std::map<DType, std::size_t> counts;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    ++counts[tensor.dtype];
  }
  std::string text;
  for (const auto& [dtype, count] : counts) {
    text += concat(text.empty() ? "" : ", ", name(dtype), counts.size() == 1 ? "" : concat(" ", count));
  }
  return text;
}

// The sizes that nearly every config.json has, as far as this one has them.
std::string sizes_text(const HfConfig& config) {
  constexpr std::array<std::pair<const char*, const char*>, 10> kSizes = {{{"hidden_size", "hidden"},
                                                                           {"num_hidden_layers", "layers"},
                                                                           {"num_attention_heads", "heads"},
                                                                           {"num_key_value_heads", "key/value heads"},
                                                                           {"head_dim", "head dim"},
                                                                           {"intermediate_size", "intermediate"},
                                                                           {"num_local_experts", "experts"},
                                                                           {"num_experts", "experts"},
                                                                           {"vocab_size", "vocab"},
                                                                           {"max_position_embeddings", "context"}}};
  std::string text;
  for (const auto& [key, word] : kSizes) {
    if (const auto value = config.optional_integer(key)) {
      text += concat(text.empty() ? "" : ", ", word, " ", format_count(*value));
    }
  }
  return text;
}

void print_summary(const ResolvedModel& view, const Stream& out) {
  const Checkpoint& checkpoint = view.checkpoint;
  const HfConfig& config = checkpoint.config();
  out.text << out.paint(Tone::kStrong, architecture_name(config)) << ", " << format_parameters(parameter_count(view))
           << " parameters; " << counted(checkpoint.tensors().size(), "tensor") << " stored, "
           << format_bytes(stored_bytes(checkpoint)) << ", " << dtypes_text(checkpoint) << "\n";
  Table facts({left(), left()});
  const std::string sizes = sizes_text(config);
  if (!sizes.empty()) {
    facts.add({"config", sizes});
  }
  for (const TieGroup& group : view.ties.groups()) {
    for (const TieAlias& alias : group.aliases) {
      facts.add({"tied", concat(alias.name, " = ", group.canonical, "  (", alias.reasons.front().text, ")")});
    }
  }
  if (view.ties.groups().empty()) {
    facts.add({"ties", view.family == nullptr ? "none that config and files show" : "none"});
  }
  constexpr std::size_t kFilesOnOneScreen = 8;
  const auto& files = checkpoint.files();
  for (std::size_t i = 0; i < std::min(files.size(), kFilesOnOneScreen); ++i) {
    facts.add({i == 0 ? "files" : "",
               concat(files[i].file().path().filename().string(),
                      "  ",
                      format_bytes(files[i].size()),
                      ", ",
                      counted(files[i].header().tensors.size(), "tensor"),
                      ", header ",
                      format_bytes(files[i].header().data_start))});
  }
  if (files.size() > kFilesOnOneScreen) {
    facts.add({"", concat("and ", counted(files.size() - kFilesOnOneScreen, "file"), " more")});
  }
  facts.print(out, 2);
}

// Stored tensors in the order in which the model registers them; names that it does not have come last.
std::vector<const StoredTensor*> in_model_order(const ResolvedModel& view) {
  std::vector<const StoredTensor*> ordered;
  std::set<std::string> taken;
  for (const ParameterInfo& parameter : view.table) {
    const StoredTensor* tensor = view.checkpoint.find(parameter.fqn);
    if (tensor != nullptr && taken.insert(tensor->name).second) {
      ordered.push_back(tensor);
    }
  }
  for (const StoredTensor& tensor : view.checkpoint.tensors()) {
    if (!taken.contains(tensor.name)) {
      ordered.push_back(&tensor);
    }
  }
  return ordered;
}

void print_every_tensor(const ResolvedModel& view, const Stream& out) {
  Table table({left("tensor"), left("shape"), left("dtype"), right("size"), left("file"), right("first byte")});
  for (const StoredTensor* tensor : in_model_order(view)) {
    table.add({tensor->name,
               to_string(tensor->shape),
               std::string(name(tensor->dtype)),
               format_bytes(tensor->bytes),
               view.checkpoint.file_name(*tensor),
               format_count(static_cast<std::int64_t>(tensor->offset))});
  }
  table.print(out);
}

void print_folded_tensors(const ResolvedModel& view, const Stream& out) {
  const std::vector<const StoredTensor*> tensors = in_model_order(view);
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const StoredTensor* tensor : tensors) {
    names.push_back(tensor->name);
  }
  const auto kind = [&](std::size_t i) { return concat(name(tensors[i]->dtype), to_string(tensors[i]->shape)); };
  Table table({left("tensors"), right("count"), left("shape"), left("dtype"), right("size")});
  for (const NameGroup& group : fold_names(names, kind)) {
    const StoredTensor& first = *tensors[group.members.front()];
    table.add({group.pattern,
               format_count(static_cast<std::int64_t>(group.members.size())),
               to_string(first.shape),
               std::string(name(first.dtype)),
               format_bytes(first.bytes * group.members.size())});
  }
  table.print(out);
}

/// Null for a model that is none.
OrderedJson decoder_document(const ResolvedModel& view) {
  const auto decoder = view.family == nullptr ? std::nullopt : view.family->decoder(view.checkpoint.config());
  return decoder ? to_json(*decoder) : OrderedJson();
}

OrderedJson document(const ResolvedModel& view) {
  const Checkpoint& checkpoint = view.checkpoint;
  OrderedJson files = OrderedJson::array();
  for (const SafetensorsFile& file : checkpoint.files()) {
    files.push_back({{"name", file.file().path().filename().string()},
                     {"bytes", file.size()},
                     {"header_bytes", file.header().data_start},
                     {"tensors", file.header().tensors.size()},
                     {"metadata", file.header().metadata}});
  }
  OrderedJson tensors = OrderedJson::array();
  for (const StoredTensor* tensor : in_model_order(view)) {
    tensors.push_back({{"name", tensor->name},
                       {"dtype", name(tensor->dtype)},
                       {"shape", tensor->shape},
                       {"file", checkpoint.file_name(*tensor)},
                       {"offset", tensor->offset},
                       {"bytes", tensor->bytes}});
  }
  return {{"architecture", checkpoint.config().architecture()},
          {"model_type", checkpoint.config().model_type()},
          {"family", view.family == nullptr ? OrderedJson() : OrderedJson(view.family->name())},
          {"parameters", parameter_count(view)},
          {"stored_bytes", stored_bytes(checkpoint)},
          {"files", files},
          {"groups", to_json(view.ties.groups())},
          {"tensors", tensors},
          {"config", OrderedJson::parse(checkpoint.config().json().dump())},
          {"decoder", decoder_document(view)},
          {"findings", to_json(view.findings)}};
}

} // namespace

int run_inspect(const InspectOptions& options, const Console& console) {
  if (options.tensor.empty() && is_training_checkpoint(options.directory)) {
    return show_saved(options.directory, options.all, options.json, console);
  }
  const SavedAsModel source(options.directory, SavedPart::kValues);
  print_findings(console.err, source.findings());
  const ResolvedModel view = resolve_model(source.path(), options.open.options());
  if (!options.tensor.empty()) {
    const TensorValues values = read_tensor_values(view, options.tensor, options.first);
    if (options.json) {
      print_json(console.out, to_json(view, values));
    } else {
      print_tensor_values(view, values, console.out);
    }
    return kExitSuccess;
  }
  if (options.json) {
    print_json(console.out, document(view));
    return kExitSuccess;
  }
  print_summary(view, console.out);
  console.out.text << "\n";
  options.all ? print_every_tensor(view, console.out) : print_folded_tensors(view, console.out);
  console.out.text.flush();
  print_findings(console.err, view.findings);
  return kExitSuccess;
}

void add_inspect(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand("inspect", "Show what a checkpoint is and holds; one tensor with --tensor");
  verb->add_option("DIR",
                   options->directory,
                   "Checkpoint directory (config.json and safetensors files), a weights file, or a training checkpoint")
      ->required();
  CLI::Option* tensor =
      verb->add_option("--tensor", options->tensor, "Show this tensor and its first values")->type_name("NAME");
  verb->add_option("--first", options->first, "Number of values to show, 0 or more (default 8)")
      ->type_name("N")
      ->check(whole_number(0, 1'000'000'000))
      ->needs(tensor);
  add_open_flags(*verb, options->open);
  verb->add_flag("--all", options->all, "List every tensor with its file and first byte")->excludes(tensor);
  verb->add_flag("--json",
                 options->json,
                 "Print JSON: all of config, decoder (config with its defaults), files, tensors and ties");
  verb->footer(
      "Examples:\n"
      "  tieshard inspect smollm2/\n"
      "  tieshard inspect smollm2/ --all | grep layers.7\n"
      "  tieshard inspect smollm2/ --tensor lm_head.weight --first 4");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_inspect(*options, console); }; });
}

} // namespace tieshard::cli
