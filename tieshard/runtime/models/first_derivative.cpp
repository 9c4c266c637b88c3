#include "tieshard/runtime/models/first_derivative.h"

#include <ATen/core/grad_mode.h>

#include "tieshard/core/base/error.h"

namespace tieshard {

void refuse_second_derivative(const std::string& function) {
  if (at::GradMode::is_enabled()) {
    throw UsageError({.code = Code::kWrongState,
                      .what = "a function of the models has no second derivative",
                      .where = function,
                      .why = "backward was called with create_graph",
                      .fix = "call it without create_graph; where second derivatives are needed, use a module that is "
                             "made of torch's own functions, outside of fully_shard"});
  }
}

} // namespace tieshard
