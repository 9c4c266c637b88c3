#include "tieshard/core/base/units.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tieshard {
namespace {

TEST(Units, BytesAreShownInBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(56'623'104), "54.0 MiB");
  EXPECT_EQ(format_bytes(1'288'490'189), "1.2 GiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16.0 EiB");
}

TEST(Units, RoundingUpReachesTheNextUnit) {
  EXPECT_EQ(format_bytes(1'048'575), "1.0 MiB");
  EXPECT_EQ(format_parameters(999'999), "1.0 M");
  EXPECT_EQ(format_seconds(0.9996), "1.00 s");
  EXPECT_EQ(format_seconds(59.996), "1:00 min");
  EXPECT_EQ(format_seconds(3599.7), "1:00:00 h");
}

TEST(Units, CountsHaveThousandsSeparated) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(49'152), "49,152");
  EXPECT_EQ(format_count(1'234'567), "1,234,567");
  EXPECT_EQ(format_count(-123), "-123");
  EXPECT_EQ(format_count(-49'152), "-49,152");
}

TEST(Units, ParametersAreShownInDecimalUnits) {
  EXPECT_EQ(format_parameters(576), "576");
  EXPECT_EQ(format_parameters(49'152), "49.2 K");
  EXPECT_EQ(format_parameters(134'515'008), "134.5 M");
  EXPECT_EQ(format_parameters(1'235'814'400), "1.2 B");
}

TEST(Units, SecondsAreShownAsPeopleSayThem) {
  EXPECT_EQ(format_seconds(0), "0 ms");
  EXPECT_EQ(format_seconds(0.0121), "12 ms");
  EXPECT_EQ(format_seconds(1.254), "1.25 s");
  EXPECT_EQ(format_seconds(161), "2:41 min");
  EXPECT_EQ(format_seconds(3723), "1:02:03 h");
}

TEST(Units, SizesAreReadInTheUnitsThatPeopleWrite) {
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("16MiB"), 16U << 20U);
  EXPECT_EQ(parse_bytes("16 mib"), 16U << 20U);
  EXPECT_EQ(parse_bytes("1.5GiB"), 3U << 29U);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000U);
  EXPECT_EQ(parse_bytes("3 kB"), 3000U);
  EXPECT_EQ(parse_bytes("12B"), 12U);
  EXPECT_EQ(parse_bytes("1TiB"), std::uint64_t{1} << 40U);
}

TEST(Units, WhatIsNoSizeIsRefused) {
  for (const char* text : {"",
                           "MiB",
                           "-1",
                           "+1",
                           "1e9",
                           "0x10",
                           "1.5",
                           "1.5B",
                           "1.2.3MiB",
                           "1 MiB ",
                           "1  MiB",
                           "1Mi",
                           "1M",
                           "1PiB",
                           "1iB",
                           "9223372036854775808",
                           "99999999TiB",
                           "nan",
                           "inf",
                           "1 "}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Units, NamesFromFilesCannotControlTheTerminal) {
  EXPECT_EQ(format_name("model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(format_name("a\x1b[2Jb\n\x7f"), "a\\u001b[2Jb\\u000a\\u007f");
  EXPECT_EQ(format_name("été.重み"), "été.重み");
}

TEST(Units, LongNamesAreCutBetweenCharacters) {
  EXPECT_EQ(format_name(std::string(256, 'x')), std::string(256, 'x'));
  EXPECT_EQ(format_name(std::string(4005, 'x')), std::string(256, 'x') + "... (4,005 bytes)");
  EXPECT_EQ(format_name(std::string(255, 'x') + "é"), std::string(255, 'x') + "... (257 bytes)");
}

TEST(Units, ListsOfNamesSayHowManyAreLeftOut) {
  EXPECT_EQ(format_names({"a"}), "a");
  EXPECT_EQ(format_names({"a", "b"}), "a, b");
  EXPECT_EQ(format_names(std::vector<std::string>(8, "n")), "n, n, n, n, n, n, n, n");
  EXPECT_EQ(format_names(std::vector<std::string>(10, "n")), "n, n, n, n, n, n, n, n and 2 more");
}

} // namespace
} // namespace tieshard
