// tieshard/runtime/models/first_derivative.h
//
// The models' own functions compute their gradients outside of autograd, which would take what they save for constants:
// a second derivative would be wrong without an error.
//
// Flow: models/lean_functions.h, models/linear_kernel.h, models/linear_cross_entropy.h -> [this]

#pragma once

#include <string>

namespace tieshard {

/// To be called where a backward begins. @param function  its name, for the message
/// @throws UsageError wrong-state when backward was called with create_graph
void refuse_second_derivative(const std::string& function);

} // namespace tieshard
