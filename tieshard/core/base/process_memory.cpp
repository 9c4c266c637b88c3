#include "tieshard/core/base/process_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace tieshard {
namespace {

/// The line "KEY  N kB" of a file of /proc, in bytes; 0 when there is none.
std::uint64_t proc_bytes(const char* path, std::string_view wanted) {
  std::ifstream file(path);
  std::string key;
  while (file >> key) {
    if (key == wanted) {
      std::uint64_t kibibytes = 0;
      file >> kibibytes;
      return kibibytes * 1024;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt; // "max" is no number
}

/// What the control groups above this process leave of their limits; nothing where there is no limit.
std::optional<std::uint64_t> left_in_groups() {
  std::ifstream file("/proc/self/cgroup");
  std::optional<std::uint64_t> least;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) {
      continue;
    }
    const std::filesystem::path root = "/sys/fs/cgroup";
    for (std::filesystem::path group = root / line.substr(4);; group = group.parent_path()) {
      const auto limit = number_in(group / "memory.max");
      const auto used = number_in(group / "memory.current");
      if (limit && used) {
        least = std::min(least.value_or(*limit), *limit - std::min(*used, *limit));
      }
      if (group == root || !group.has_relative_path()) {
        break;
      }
    }
  }
  return least;
}

} // namespace

std::uint64_t resident_bytes() {
  return proc_bytes("/proc/self/status", "VmRSS:");
}

std::uint64_t peak_resident_bytes() {
  return proc_bytes("/proc/self/status", "VmHWM:");
}

std::uint64_t available_bytes() {
  const std::uint64_t machine = proc_bytes("/proc/meminfo", "MemAvailable:");
  const std::optional<std::uint64_t> groups = left_in_groups();
  return groups ? std::min(machine, *groups) : machine;
}

} // namespace tieshard
