#include "tieshard/core/doctor/room_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tieshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Diagnostic> check(const Need& need, const Room& room) {
  FindingList findings;
  check_room("/models/a", need, room, findings);
  return findings.sorted();
}

TEST(RoomCheck, SaysNothingWhereThereIsRoomOrNothingIsKnown) {
  const Need need{.ranks = 2, .rank_bytes = 100, .export_bytes = 50, .save_bytes = 300};
  EXPECT_THAT(check(need, {.memory = 200, .disk = 300, .disk_known = true}), IsEmpty());
  EXPECT_THAT(check(need, {}), IsEmpty());
}

TEST(RoomCheck, AllRanksTogetherNeedTheMemory) {
  const auto findings = check({.ranks = 2, .rank_bytes = 1 << 20}, {.memory = (2 << 20) - 1});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, Code::kHostMemory);
  EXPECT_EQ(findings[0].level, Level::kNote);
  EXPECT_EQ(findings[0].where, "2 ranks on this machine");
  EXPECT_THAT(findings[0].why, HasSubstr("1.0 MiB a rank"));
}

TEST(RoomCheck, NamesTheSmallestThingThatDoesNotFitOnTheDisk) {
  const Need need{.export_bytes = 1 << 20, .save_bytes = 12 << 20};
  const auto save = check(need, {.disk = 2 << 20, .disk_known = true});
  ASSERT_EQ(save.size(), 1U);
  EXPECT_EQ(save[0].code, Code::kDiskFull);
  EXPECT_EQ(save[0].where, "/models/a");
  EXPECT_THAT(save[0].why, HasSubstr("expected 12.0 MiB for a training checkpoint"));
  EXPECT_THAT(check(need, {.disk = 1, .disk_known = true})[0].why, HasSubstr("expected 1.0 MiB for an export"));
}

TEST(RoomCheck, ThisMachineHasBoth) {
  const Room room = room_at("/");
  EXPECT_GT(room.memory, 0U);
  EXPECT_TRUE(room.disk_known);
  EXPECT_FALSE(room_at("/no/such/directory").disk_known);
}

} // namespace
} // namespace tieshard
