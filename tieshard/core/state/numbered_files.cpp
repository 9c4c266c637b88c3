#include "tieshard/core/state/numbered_files.h"

#include <map>
#include <regex>
#include <set>

#include "tieshard/core/base/error.h"
#include "tieshard/core/base/units.h"

namespace tieshard {

void require_numbered_files(const std::filesystem::path& directory, const std::vector<std::string>& names) {
  static const std::regex numbered("(?:shard-[0-9]{5}-)?model-([0-9]{5})-of-([0-9]{5})\\.safetensors");
  std::map<int, std::set<int>> present; // numbers, by how many there are said to be
  for (const std::string& name : names) {
    if (std::smatch parts; std::regex_match(name, parts, numbered)) {
      present[std::stoi(parts[2])].insert(std::stoi(parts[1]));
    }
  }
  for (const auto& [count, numbers] : present) {
    std::vector<std::string> missing;
    for (int number = 1; number <= count; ++number) {
      if (!numbers.contains(number)) {
        missing.push_back(std::to_string(number));
      }
    }
    if (!missing.empty()) {
      throw InputError(
          {.code = Code::kShardMissing,
           .what = "files that are numbered are not all there",
           .where = directory.string(),
           .why =
               concat("expected files 1 to ", count, " of ", count, ", got none with number ", format_names(missing)),
           .fix = "download or copy the missing files"});
    }
  }
}

} // namespace tieshard
