// tests/fuzz/manifest_fuzz.cpp
//
// parse_manifest on arbitrary text: what it accepts comes back as it was, and names files of its directory only.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string_view>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const tieshard::Manifest manifest = tieshard::parse_manifest(text, "manifest.json");
    if (tieshard::parse_manifest(tieshard::to_json(manifest), "again") != manifest) {
      std::abort();
    }
    std::set<std::filesystem::path> files;
    for (const tieshard::FileRecord& file : manifest.files) {
      const std::filesystem::path place = ("/checkpoint" / std::filesystem::path(file.name)).lexically_normal();
      if (!place.string().starts_with("/checkpoint/") || !files.insert(place).second) {
        std::abort();
      }
    }
    for (const tieshard::ParameterRecord& parameter : manifest.parameters) {
      if (manifest.find(parameter.fqn) != &parameter ||
          parameter.dim >= static_cast<std::int64_t>(parameter.shape.size())) {
        std::abort();
      }
    }
  } catch (const tieshard::InputError&) { // a refusal
  }
  return 0;
}
