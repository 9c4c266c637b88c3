#include "tieshard/cli/diff.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include <CLI/App.hpp>

#include "tieshard/cli/checkpoint_flags.h"
#include "tieshard/cli/flags.h"
#include "tieshard/cli/json_output.h"
#include "tieshard/cli/saved_as_model.h"
#include "tieshard/cli/table.h"
#include "tieshard/core/base/units.h"
#include "tieshard/core/doctor/checkpoint_diff.h"

namespace tieshard::cli {
namespace {

namespace fs = std::filesystem;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

void add_kind(std::string& text, std::uint64_t count, const char* kind) {
  if (count > 0) {
    text += concat(", ", count, " ", kind);
  }
}

/// "2 values differ, first at 37, by 0.5 at most"; why there is nothing of values to say.
std::string values_text(const NameDifference& difference) {
  if (difference.same_values) {
    return "the same values";
  }
  if (!difference.elements) {
    const bool both = difference.first != "absent" && difference.second != "absent";
    return both && !difference.compared ? "values not compared" : "";
  }
  const TensorDifference& elements = *difference.elements;
  std::string text = concat(format_count(static_cast<std::int64_t>(elements.count)),
                            elements.count == 1 ? " value differs, at " : " values differ, first at ",
                            elements.first,
                            elements.largest ? concat(", by ", number(*elements.largest), " at most") : "");
  add_kind(text, elements.zero_signs, "in the sign of zero");
  add_kind(text, elements.nan_bits, "in the bits of a NaN");
  add_kind(text, elements.not_finite, "where a NaN or infinity is against another value");
  return text;
}

void print_diff(const CheckpointDiff& diff, const Stream& out) {
  Table table({left(), left(), left(), left()});
  for (const NameDifference& one : diff.differences) {
    table.add(
        {format_name(one.name), one.first, one.first == one.second ? "" : concat("-> ", one.second), values_text(one)});
  }
  table.print(out, 2);
  if (!diff.tied.empty()) {
    out.text << "  tied on one side and stored on the other, compared with the tied weight: " << format_names(diff.tied)
             << "\n";
  }
  if (!diff.config.empty()) {
    out.text << "  config.json: " << format_names(diff.config) << "\n";
  }
  out.text << (diff.same() ? out.paint(Tone::kGood, "same") : out.paint(Tone::kError, "different")) << ": "
           << diff.equal << " of " << counted(diff.tensors, "tensor") << " equal, "
           << (diff.values ? concat(format_bytes(diff.bytes), " of values compared") : "values not compared") << "\n";
}

OrderedJson document(const CheckpointDiff& diff) {
  OrderedJson differences = OrderedJson::array();
  for (const NameDifference& one : diff.differences) {
    const std::optional<TensorDifference>& elements = one.elements;
    differences.push_back({{"name", one.name},
                           {"first", one.first},
                           {"second", one.second},
                           {"same_values", one.same_values},
                           {"first_index", elements ? OrderedJson(elements->first) : OrderedJson()},
                           {"values_differ", elements ? OrderedJson(elements->count) : OrderedJson()},
                           {"largest", elements && elements->largest ? OrderedJson(*elements->largest) : OrderedJson()},
                           {"compared", one.compared},
                           {"zero_signs", elements ? elements->zero_signs : 0},
                           {"nan_bits", elements ? elements->nan_bits : 0},
                           {"not_finite", elements ? elements->not_finite : 0}});
  }
  return {{"same", diff.same()},
          {"tensors", diff.tensors},
          {"equal", diff.equal},
          {"compared_bytes", diff.bytes},
          {"values", diff.values},
          {"differences", differences},
          {"config", diff.config},
          {"tied_on_one_side", diff.tied}};
}

/// An answer of `check`, and why.
struct Answer {
  bool yes = true;
  std::string text{};
};

/// A file by itself, of which the model's config and other files are beside it and were not asked.
void require_whole_model(const ResolvedModel& model, const std::string& path) {
  const auto is_part = [](const Diagnostic& finding) { return finding.code == Code::kConfigMissing; };
  if (fs::is_directory(path) || std::ranges::none_of(model.findings, is_part)) {
    return;
  }
  throw InputError({.code = Code::kConfigMissing,
                    .what = "ties cannot be known from a weights file by itself",
                    .where = path,
                    .why = "expected a model with its config.json, got one file; its other shards and its config were "
                           "not asked",
                    .fix = "give the directory of the model"});
}

Answer ties_as_expected(const ResolvedModel& model, const std::string& expect) {
  const auto& groups = model.ties.groups();
  const bool tied = !groups.empty();
  std::string text = tied ? concat("tied (", groups.front().aliases.front().name, " = ", groups.front().canonical, ")")
                          : std::string("untied");
  for (const Diagnostic& finding : model.ties.findings()) {
    if (finding.level == Level::kWarning && !tied) {
      text += concat(" (", id(finding.code), ": ", finding.why, ")");
      break;
    }
  }
  return {.yes = tied == (expect == "tied"), .text = std::move(text)};
}

Answer same_as(const ResolvedModel& model, const CheckVerbOptions& options, const Console& console) {
  const SavedAsModel source(options.same_as, SavedPart::kValues);
  print_findings(console.err, source.findings());
  const ResolvedModel other = resolve_model(source.path(), options.open.options());
  const CheckpointDiff diff = compare_checkpoints(model, other, {.threads = threads_flag(options.threads)});
  if (diff.same()) {
    return {.yes = true, .text = concat("same ", counted(diff.tensors, "tensor"), " as ", options.same_as)};
  }
  if (diff.differences.empty()) {
    return {.yes = false,
            .text = concat("another config.json than ", options.same_as, ": ", format_names(diff.config))};
  }
  const NameDifference& first = diff.differences.front();
  const std::string values = values_text(first);
  return {.yes = false,
          .text = concat(diff.differences.size(),
                         diff.differences.size() == 1 ? " difference from " : " differences from ",
                         options.same_as,
                         ": ",
                         format_name(first.name),
                         " ",
                         first.first == first.second ? first.first : concat(first.first, " -> ", first.second),
                         values.empty() ? "" : concat(", ", values))};
}

} // namespace

int run_diff(const DiffVerbOptions& options, const Console& console) {
  const SavedPart part = options.no_values ? SavedPart::kHeaders : SavedPart::kValues;
  const SavedAsModel one(options.first, part);
  const SavedAsModel other(options.second, part);
  print_findings(console.err, one.findings());
  print_findings(console.err, other.findings());
  const ResolvedModel first = resolve_model(one.path(), options.open.options());
  const ResolvedModel second = resolve_model(other.path(), options.open.options());
  const CheckpointDiff diff =
      compare_checkpoints(first, second, {.values = !options.no_values, .threads = threads_flag(options.threads)});
  if (options.json) {
    print_json(console.out, document(diff));
  } else {
    print_diff(diff, console.out);
  }
  return diff.same() ? kExitSuccess : kExitAnswerIsNo;
}

int run_check(const CheckVerbOptions& options, const Console& console) {
  if (options.expect.empty() && options.same_as.empty()) {
    throw InputError({.code = Code::kBadFlag,
                      .what = "a check asks for nothing",
                      .where = "tieshard check",
                      .why = "expected --expect, --same-as or both, got neither",
                      .fix = "say what has to hold; tieshard doctor checks that a checkpoint loads"});
  }
  const SavedAsModel source(options.directory, options.same_as.empty() ? SavedPart::kHeaders : SavedPart::kValues);
  print_findings(console.err, source.findings());
  const ResolvedModel model = resolve_model(source.path(), options.open.options());
  std::vector<Answer> answers;
  if (!options.expect.empty()) {
    require_whole_model(model, options.directory);
    answers.push_back(ties_as_expected(model, options.expect));
  }
  if (!options.same_as.empty()) {
    answers.push_back(same_as(model, options, console));
  }
  Answer all;
  for (const Answer& answer : answers) {
    all.yes = all.yes && answer.yes;
    all.text += concat(all.text.empty() ? "" : "; ", answer.text);
  }
  const std::string expected =
      options.expect.empty() || answers.front().yes ? "" : concat(" (expected ", options.expect, ")");
  if (options.json) {
    print_json(console.out, {{"ok", all.yes}, {"said", all.text + expected}});
  } else {
    console.out.text << (all.yes ? console.out.paint(Tone::kGood, "ok") : console.out.paint(Tone::kError, "no")) << ": "
                     << options.directory << ": " << all.text << expected << "\n";
  }
  return all.yes ? kExitSuccess : kExitAnswerIsNo;
}

void add_diff(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<DiffVerbOptions>();
  CLI::App* verb = app.add_subcommand("diff", "Show in what two checkpoints differ: names, shapes, dtypes, values");
  verb->add_option(
          "A",
          options->first,
          "Checkpoint directory, a weights file, or a training checkpoint (its values are put together in TMPDIR)")
      ->required();
  verb->add_option("B", options->second, "The same of another")->required();
  verb->add_flag("--no-values", options->no_values, "Compare headers alone");
  add_threads(*verb, options->threads);
  add_open_flags(*verb, options->open);
  verb->add_flag(
      "--json", options->json, "Print JSON: same, differences with first index, count and largest difference");
  verb->footer(
      "Examples:\n"
      "  tieshard diff smollm2/ runs/a/export\n"
      "  tieshard diff base.safetensors tuned.safetensors --json | jq '.differences[].name'\n"
      "\n"
      "Order, files and a tied weight that is stored under each of its names are no difference. Values of one dtype "
      "are\n"
      "compared bit by bit, of two by value; keys of both config.json that make it another model are compared too; an "
      "index counts the elements of a tensor in row-major order.\n"
      "Exit status: 0 the same, 1 different.");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_diff(*options, console); }; });
}

void add_check(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<CheckVerbOptions>();
  CLI::App* verb = app.add_subcommand("check", "Answer yes or no for CI: is it tied, is it the same");
  verb->add_option(
          "DIR",
          options->directory,
          "Checkpoint directory, a weights file, or a training checkpoint (its values are put together in TMPDIR)")
      ->required();
  verb->add_option("--expect", options->expect, "Whether names share a weight")
      ->type_name("tied|untied")
      ->check(one_of({"tied", "untied"}));
  verb->add_option("--same-as", options->same_as, "Checkpoint whose names, shapes, dtypes and values it has to have")
      ->type_name("DIR")
      ->check(any_text("a directory"));
  add_threads(*verb, options->threads);
  add_open_flags(*verb, options->open);
  verb->add_flag("--json", options->json, "Print JSON: ok, said");
  verb->footer(
      "Examples:\n"
      "  tieshard check runs/a/export --expect tied\n"
      "  tieshard check model/ --expect untied --same-as reference/\n"
      "\n"
      "Exit status: 0 yes, 1 no, 2 a file or flag is wrong, 4 it cannot be read. docs/ci.md has a job for GitHub "
      "Actions.");
  verb->callback(
      [options, &chosen] { chosen = [options](const Console& console) { return run_check(*options, console); }; });
}

} // namespace tieshard::cli
