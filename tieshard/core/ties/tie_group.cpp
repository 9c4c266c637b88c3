#include "tieshard/core/ties/tie_group.h"

namespace tieshard {

std::string_view id(TieEvidence evidence) {
  switch (evidence) {
    case TieEvidence::kModuleIdentity:
      return "module-identity";
    case TieEvidence::kConfigFlag:
      return "config-flag";
    case TieEvidence::kFamilyRule:
      return "family-rule";
    case TieEvidence::kFileMetadata:
      return "file-metadata";
    case TieEvidence::kExplicitMap:
      return "explicit-map";
    case TieEvidence::kEqualBytes:
      return "equal-bytes";
  }
  return "unknown";
}

} // namespace tieshard
