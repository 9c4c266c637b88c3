#include "tieshard/cli/merge_adapter.h"

#include <memory>

#include <CLI/App.hpp>

#include "tieshard/cli/json_output.h"
#include "tieshard/cli/lora_flag.h"
#include "tieshard/core/adapters/merge.h"
#include "tieshard/core/base/units.h"

namespace tieshard::cli {

int run_merge_adapter(const MergeAdapterOptions& options, const Console& console) {
  const MergeReport report = merge_adapter(
      options.base, options.adapter, options.out, options.open.options(), tied_target_flag(options.lora_tied));
  if (options.json) {
    print_json(console.out,
               OrderedJson{{"directory", report.directory.string()},
                           {"files", report.files},
                           {"tensors", report.tensors},
                           {"merged", report.merged},
                           {"replaced", report.replaced},
                           {"bytes", report.bytes},
                           {"seconds", report.seconds},
                           {"findings", to_json(report.findings)}});
    return kExitSuccess;
  }
  print_findings(console.err, report.findings);
  console.out.text << concat("merged  ",
                             report.directory.string(),
                             "  ",
                             format_bytes(report.bytes),
                             ", ",
                             report.tensors,
                             " tensors: ",
                             report.merged,
                             " with the adapter, ",
                             report.replaced,
                             " replaced, the others as they were, ",
                             format_seconds(report.seconds),
                             "\n");
  console.out.text.flush();
  return kExitSuccess;
}

void add_merge_adapter(CLI::App& app, Verb& chosen) {
  const auto options = std::make_shared<MergeAdapterOptions>();
  CLI::App* verb = app.add_subcommand("merge-adapter", "Add a LoRA adapter into a checkpoint's weights");
  verb->add_option("BASE", options->base, "Hugging Face checkpoint directory")->required();
  verb->add_option("ADAPTER", options->adapter, "PEFT adapter directory (LoRA)")->required();
  verb->add_option("OUT", options->out, "Directory for the merged checkpoint; must not be there")->required();
  add_lora_tied_flag(*verb, options->lora_tied);
  add_open_flags(*verb, options->open);
  verb->add_flag("--json", options->json, "Print JSON: files, tensors, bytes, findings");
  verb->footer(
      "Examples:\n"
      "  tieshard merge-adapter smollm2/ runs/a/adapter merged/\n"
      "\n"
      "Files, names and dtypes are those of BASE; a tied weight is written once. Sums are float32, rounded once.\n"
      "docs/lora.md says more.");
  verb->callback([options, &chosen] {
    chosen = [options](const Console& console) { return run_merge_adapter(*options, console); };
  });
}

} // namespace tieshard::cli
