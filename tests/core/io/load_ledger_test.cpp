#include "tieshard/core/io/load_ledger.h"

#include <gtest/gtest.h>

namespace tieshard::testing {
namespace {

LedgerEntry entry(std::string fqn, std::int64_t elements, int materialized) {
  LedgerEntry made;
  made.fqn = std::move(fqn);
  made.elements = elements;
  made.materialized = materialized;
  return made;
}

LoadLedger example() {
  LoadLedger ledger;
  ledger.entries = {entry("embed", 30, 1), entry("norm", 2, 0), entry("scale", 0, 1)};
  ledger.entries.front().aliases = {"head", "other_head"};
  return ledger;
}

TEST(LoadLedger, FindsAnEntryByEachOfItsNames) {
  const LoadLedger ledger = example();
  EXPECT_EQ(ledger.find("embed"), &ledger.entries[0]);
  EXPECT_EQ(ledger.find("head"), &ledger.entries[0]);
  EXPECT_EQ(ledger.find("other_head"), &ledger.entries[0]);
  EXPECT_EQ(ledger.find("norm"), &ledger.entries[1]);
  EXPECT_EQ(ledger.find("hea"), nullptr);
  EXPECT_EQ(ledger.find(""), nullptr);
}

TEST(LoadLedger, CountsEachParameterOnceWhateverItsNames) {
  const LoadLedger ledger = example();
  EXPECT_EQ(ledger.materialized(), 2);
  EXPECT_EQ(ledger.already_materialized(), 1);
  EXPECT_EQ(ledger.elements(), 32);
}

TEST(LoadLedger, IsEmptyBeforeALoad) {
  EXPECT_EQ(LoadLedger().materialized(), 0);
  EXPECT_EQ(LoadLedger().already_materialized(), 0);
  EXPECT_EQ(LoadLedger().elements(), 0);
}

} // namespace
} // namespace tieshard::testing
