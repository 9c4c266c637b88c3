// tests/fuzz/family_fuzz.cpp
//
// Every family on an arbitrary config.json: a table with checked sizes, ties between names and units that begin alike,
// or a refusal. What is repeated (layers, experts) is held small, since a table of them is long by right.

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/families/family.h"

namespace {

constexpr std::int64_t kMostRepeats = 32;

/// Whether a number under a key that may count something repeated is larger than a fuzzer has time for.
bool too_long(const tieshard::Json& document) {
  for (const auto& [key, value] : document.items()) {
    const bool counts = key.find("layer") != key.npos || key.find("group") != key.npos || key.find("num") != key.npos;
    if (value.is_object() && too_long(value)) {
      return true;
    }
    if (counts && value.is_number() && value.get<double>() > static_cast<double>(kMostRepeats)) {
      return true;
    }
  }
  return false;
}

void check_table(const tieshard::Family& family, const tieshard::HfConfig& config) {
  std::set<std::string> names;
  for (const tieshard::ParameterInfo& parameter : family.table(config)) {
    if (!tieshard::checked_bytes(parameter.shape, parameter.dtype) || !names.insert(parameter.fqn).second) {
      std::abort();
    }
  }
  for (const tieshard::UnitSpec& unit : family.units(config)) {
    if (unit.prefix != unit.name + ".") {
      std::abort();
    }
  }
  for (const tieshard::FamilyTie& tie : family.ties(config)) {
    if (tie.canonical == tie.alias) {
      std::abort();
    }
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const tieshard::HfConfig config = tieshard::HfConfig::parse(text, "config.json");
    const tieshard::Family* const family = tieshard::find_family(config);
    if (family != nullptr && !too_long(config.json())) {
      check_table(*family, config);
    }
  } catch (const tieshard::InputError&) { // a refusal
  }
  return 0;
}
