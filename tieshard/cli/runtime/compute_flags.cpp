#include "tieshard/cli/runtime/compute_flags.h"

#include <CLI/App.hpp>

#include "tieshard/cli/lora_flag.h"
#include "tieshard/runtime/tensors/torch_dtype.h"

namespace tieshard::cli {

ParallelizeOptions ComputeFlags::options() const {
  ParallelizeOptions options{.param_dtype = to_torch(dtype_flag("--dtype", dtype))};
  options.resolve = open.options();
  options.load = load_options(load, ranks.threads);
  if (!adapter.empty()) {
    options.adapter = AdapterOptions{.directory = adapter, .tied = tied_target_flag(lora_tied)};
  }
  return options;
}

void add_compute_flags(CLI::App& verb, ComputeFlags& flags) {
  verb.add_option("--dtype", flags.dtype, "Of parameters and computation; a loss is float32")->capture_default_str();
  add_adapter_flags(verb, flags.adapter, flags.lora_tied);
  add_open_flags(verb, flags.open);
  add_load_flags(verb, flags.load);
}

} // namespace tieshard::cli
