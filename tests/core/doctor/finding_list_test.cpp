#include "tieshard/core/doctor/finding_list.h"

#include <gtest/gtest.h>

namespace tieshard {
namespace {

Diagnostic finding(Level level, Code code, const std::string& where = "") {
  return {.level = level, .code = code, .what = "w", .where = where, .why = "y", .fix = "f"};
}

TEST(FindingList, PutsErrorsBeforeWarningsBeforeNotesInTheOrderFound) {
  FindingList list;
  list.add(finding(Level::kNote, Code::kTieCopiesEqual));
  list.add(finding(Level::kWarning, Code::kUnusedTensor));
  list.add(finding(Level::kError, Code::kHole));
  list.add(finding(Level::kWarning, Code::kTotalSize));
  list.add(finding(Level::kError, Code::kOverlap));
  std::vector<Code> codes;
  for (const Diagnostic& each : list.sorted()) {
    codes.push_back(each.code);
  }
  EXPECT_EQ(
      codes,
      (std::vector<Code>{Code::kHole, Code::kOverlap, Code::kUnusedTensor, Code::kTotalSize, Code::kTieCopiesEqual}));
}

TEST(FindingList, KeepsEachFindingOnce) {
  FindingList list;
  list.add({finding(Level::kError, Code::kHole, "a"), finding(Level::kError, Code::kHole, "a")});
  list.add(finding(Level::kError, Code::kHole, "b"));
  EXPECT_EQ(list.sorted().size(), 2U);
}

TEST(FindingList, TakesRefusalsAsErrorsWhateverTheirLevel) {
  FindingList list;
  EXPECT_FALSE(list.collect([] { throw InputError(finding(Level::kWarning, Code::kHole)); }));
  EXPECT_FALSE(list.collect([] { throw UsageError(finding(Level::kError, Code::kBadShardDim)); }));
  EXPECT_TRUE(list.collect([] {}));
  ASSERT_EQ(list.sorted().size(), 2U);
  EXPECT_EQ(list.sorted()[0].level, Level::kError);
}

TEST(FindingList, LetsThroughWhatSaysNothingOfTheCheckpoint) {
  FindingList list;
  EXPECT_THROW(list.collect([] { throw PeerError(finding(Level::kError, Code::kIoFailed)); }), PeerError);
  EXPECT_THROW(list.collect([] { throw InternalError(finding(Level::kError, Code::kBug)); }), InternalError);
}

} // namespace
} // namespace tieshard
