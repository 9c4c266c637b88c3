#include "tieshard/core/base/process_memory.h"

#include <fstream>
#include <string>
#include <string_view>

namespace tieshard {
namespace {

std::uint64_t status_bytes(std::string_view wanted) {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    if (key == wanted) {
      std::uint64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * 1024;
    }
    status.ignore(4096, '\n');
  }
  return 0;
}

} // namespace

std::uint64_t resident_bytes() {
  return status_bytes("VmRSS:");
}

std::uint64_t peak_resident_bytes() {
  return status_bytes("VmHWM:");
}

} // namespace tieshard
