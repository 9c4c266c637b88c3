#include "python/src/bindings.h"

NB_MODULE(_core, module) {
  using namespace tieshard::python;
  module.doc() = "tieshard's torch-free core: checkpoints, ties, plans, diagnosis, reading, saving.";
  module.attr("__version__") = TIESHARD_VERSION;
  bind_errors(module);
  bind_ties(module);
  bind_checkpoint(module);
  bind_plan(module);
  bind_doctor(module);
  bind_model_source(module);
  bind_saving(module);
  bind_saved_state(module);
  bind_exporting(module);
}
