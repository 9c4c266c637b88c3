#include "tieshard/core/io/load_ledger.h"

#include <algorithm>

namespace tieshard {

const LedgerEntry* LoadLedger::find(std::string_view fqn) const {
  for (const LedgerEntry& entry : entries) {
    if (entry.fqn == fqn || std::ranges::find(entry.aliases, fqn) != entry.aliases.end()) {
      return &entry;
    }
  }
  return nullptr;
}

std::int64_t LoadLedger::materialized() const {
  return std::ranges::count_if(entries, [](const LedgerEntry& entry) { return entry.materialized > 0; });
}

std::int64_t LoadLedger::already_materialized() const {
  return static_cast<std::int64_t>(entries.size()) - materialized();
}

std::int64_t LoadLedger::initialised() const {
  return std::ranges::count_if(entries, [](const LedgerEntry& entry) { return !entry.initialised.empty(); });
}

std::int64_t LoadLedger::elements() const {
  std::int64_t sum = 0;
  for (const LedgerEntry& entry : entries) {
    sum += entry.elements;
  }
  return sum;
}

} // namespace tieshard
