#include "tieshard/runtime/train/process_memory.h"

#include <fstream>
#include <string>

namespace tieshard {

std::uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    if (key == "VmHWM:") {
      std::uint64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * 1024;
    }
    status.ignore(4096, '\n');
  }
  return 0;
}

} // namespace tieshard
