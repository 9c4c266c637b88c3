#include "tieshard/cli/model_view.h"

#include "tieshard/core/base/units.h"

namespace tieshard::cli {
std::string architecture_name(const HfConfig& config) {
  if (!config.architecture().empty()) {
    return config.architecture();
  }
  return config.model_type().empty() ? "model without an architecture" : config.model_type();
}

std::string location(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  return concat(checkpoint.file_name(tensor), " @ ", format_count(static_cast<std::int64_t>(tensor.offset)));
}

std::string counted(std::size_t count, const std::string& one) {
  return concat(format_count(static_cast<std::int64_t>(count)), " ", one, count == 1 ? "" : "s");
}

} // namespace tieshard::cli
