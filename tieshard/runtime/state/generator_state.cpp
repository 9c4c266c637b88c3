#include "tieshard/runtime/state/generator_state.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr const char* kDigits = "0123456789abcdef";

int value_of(char digit) {
  return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

[[noreturn]] void refuse(at::Device device, const std::string& why) {
  throw InputError({.code = Code::kManifestMalformed,
                    .what = "a saved random generator is not one of this device",
                    .where = concat("trainer.json, generators, ", device.str()),
                    .why = why,
                    .fix = "go on from another checkpoint"});
}

} // namespace

std::string generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  const at::Tensor state = generator.get_state().contiguous();
  std::string text;
  for (const std::uint8_t byte :
       std::span(state.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(state.numel()))) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

void set_generator_state(at::Device device, const std::string& text) {
  at::Tensor state = at::empty({static_cast<std::int64_t>(text.size() / 2)}, at::kByte);
  auto* const bytes = state.mutable_data_ptr<std::uint8_t>();
  for (std::size_t index = 0; index < text.size() / 2; ++index) {
    const int high = value_of(text[2 * index]);
    const int low = value_of(text[2 * index + 1]);
    if (high < 0 || low < 0) {
      refuse(device, concat("expected hexadecimal digits, got \"", text.substr(2 * index, 2), "\""));
    }
    bytes[index] = static_cast<std::uint8_t>(16 * high + low);
  }
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    refuse(device, error.what_without_backtrace());
  }
}

} // namespace tieshard
