// tieshard/runtime/state/generator_state.h
//
// Where a device's random number generator stands, as text.
//
// Flow:   checkpoint_writer, runtime/train -> [this] -> at::Generator
// Source: torch.get_rng_state and set_rng_state.

#pragma once

#include <string>

#include <c10/core/Device.h>

namespace tieshard {

/// The state of `device`'s default generator, in hexadecimal digits.
std::string generator_state(at::Device device);

/// @throws InputError manifest-malformed for a text that is no state of such a generator
void set_generator_state(at::Device device, const std::string& state);

} // namespace tieshard
