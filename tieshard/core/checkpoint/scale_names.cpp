#include "tieshard/core/checkpoint/scale_names.h"

#include "tieshard/core/base/error.h"

namespace tieshard {

const StoredTensor* find_scale(const Checkpoint& checkpoint, std::string_view name) {
  for (const std::string_view suffix : kScaleSuffixes) {
    if (const StoredTensor* const scale = checkpoint.find(concat(name, suffix))) {
      return scale;
    }
  }
  return nullptr;
}

} // namespace tieshard
