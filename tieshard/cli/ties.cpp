#include "tieshard/cli/ties.h"

#include <algorithm>

#include <CLI/App.hpp>

#include "tieshard/cli/json_output.h"
#include "tieshard/cli/model_view.h"
#include "tieshard/cli/saved_text.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/state/saved_model.h"

namespace tieshard::cli {
namespace {

std::string stored_text(const ResolvedModel& view, const std::string& name) {
  const StoredTensor* tensor = view.checkpoint.find(name);
  return tensor == nullptr ? "not stored" : location(view.checkpoint, *tensor);
}

// The bytes of a group's storage, in the dtype of the file.
std::uint64_t storage_bytes(const ResolvedModel& view, const TieGroup& group) {
  const StoredTensor* source = view.ties.source(view.checkpoint, group.canonical);
  return source == nullptr ? 0 : source->bytes;
}

void print_group(const ResolvedModel& view, const TieGroup& group, const Stream& out) {
  Table table({left(), left(), left(), right(), left()});
  const StoredTensor* source = view.ties.source(view.checkpoint, group.canonical);
  if (source != nullptr) {
    table.add({group.canonical,
               to_string(source->shape),
               std::string(name(source->dtype)),
               format_bytes(source->bytes),
               stored_text(view, group.canonical)});
  } else {
    table.add({group.canonical, "", "", "", "not stored"});
  }
  table.print(out);
  for (const TieAlias& alias : group.aliases) {
    out.text << "  = " << out.paint(Tone::kStrong, alias.name) << "  " << stored_text(view, alias.name) << "\n";
    for (const TieReason& reason : alias.reasons) {
      out.text << "    because  " << reason.text << out.paint(Tone::kFaint, concat("  [", id(reason.evidence), "]"))
               << "\n";
    }
  }
}

std::string why_untied(const ResolvedModel& view) {
  const auto& findings = view.ties.findings();
  const auto is_conflict = [](const Diagnostic& finding) { return finding.code == Code::kTieConflict; };
  if (std::any_of(findings.begin(), findings.end(), is_conflict)) {
    return "the names that are declared tied are stored with different values: see the warning";
  }
  const auto& flag = view.checkpoint.config().tie_word_embeddings();
  if (flag) {
    return concat("config.json: ", flag->where, " = ", flag->value ? "true" : "false");
  }
  if (view.family == nullptr) {
    return "config.json has no tie flag, and the family is not known";
  }
  return concat("config.json has no tie flag; ",
                view.family->name(),
                " is ",
                view.family->tied_by_default() ? "tied" : "untied",
                " by default");
}

void print_text(const ResolvedModel& view, const Stream& out) {
  std::uint64_t bytes = 0;
  for (const TieGroup& group : view.ties.groups()) {
    print_group(view, group, out);
    bytes += storage_bytes(view, group);
  }
  if (view.ties.groups().empty()) {
    out.text << "no ties: each of the " << counted(view.table.size(), "parameter") << " has a storage of its own\n"
             << "  because  " << why_untied(view) << "\n";
  } else {
    out.text << counted(view.ties.groups().size(), "tie group") << ", " << format_bytes(bytes) << " counted once\n";
  }
}

OrderedJson document(const ResolvedModel& view) {
  OrderedJson groups = OrderedJson::array();
  for (const TieGroup& group : view.ties.groups()) {
    OrderedJson entry = to_json(group);
    const StoredTensor* source = view.ties.source(view.checkpoint, group.canonical);
    if (source != nullptr) {
      entry["source"] = source->name;
      entry["shape"] = source->shape;
      entry["dtype"] = name(source->dtype);
      entry["bytes"] = source->bytes;
      entry["file"] = view.checkpoint.file_name(*source);
      entry["offset"] = source->offset;
    }
    for (OrderedJson& alias : entry["aliases"]) {
      alias["stored"] = view.checkpoint.find(alias["name"].get<std::string>()) != nullptr;
    }
    groups.push_back(std::move(entry));
  }
  return {{"groups", groups}, {"findings", to_json(view.findings)}};
}

} // namespace

int run_ties(const TiesOptions& options, const Console& console) {
  if (is_training_checkpoint(options.directory)) {
    return show_saved(options.directory, false, options.json, console);
  }
  const ResolvedModel view = resolve_model(options.directory, options.open.options());
  if (options.json) {
    print_json(console.out, document(view));
    return kExitSuccess;
  }
  print_text(view, console.out);
  console.out.text.flush();
  print_findings(console.err, view.findings);
  return kExitSuccess;
}

void add_ties(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<TiesOptions>();
  CLI::App* verb = app.add_subcommand("ties", "Show which names are one weight, and why");
  verb->add_option("DIR",
                   options->directory,
                   "Checkpoint directory (config.json and safetensors files), a weights file, or a training checkpoint")
      ->required();
  add_open_flags(*verb, options->open);
  verb->add_flag("--json", options->json, "Print JSON: groups (canonical, aliases with evidence) and findings");
  verb->footer(
      "Examples:\n"
      "  tieshard ties smollm2/\n"
      "  tieshard ties smollm2/ --json | jq '.groups[].aliases[].name'\n"
      "  tieshard ties untied/ --tie lm_head.weight=model.embed_tokens.weight");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_ties(*options, console); }; });
}

} // namespace tieshard::cli
