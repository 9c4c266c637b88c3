#include "tieshard/cli/flags.h"

#include <CLI/App.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/session.h"

namespace tieshard::cli {
namespace {

using ::testing::AllOf;
using testing::Answer;
using ::testing::HasSubstr;
using testing::run;

std::string said(const CLI::Validator& check, std::string text) {
  return check(text);
}

TEST(WholeNumber, TakesDecimalNumbersOfItsRangeOnly) {
  const CLI::Validator check = whole_number(-3, 40);
  for (const char* good : {"-3", "0", "40"}) {
    EXPECT_EQ(said(check, good), "") << good;
  }
  for (const char* bad : {"-4", "41", "", "x", "4x", " 4", "4.0", "1e1", "0x10", "010", "99999999999999999999"}) {
    EXPECT_EQ(said(check, bad), concat("expected a whole number from -3 to 40, got ", bad));
  }
}

TEST(FiniteNumber, TakesWhatIsFiniteAndNotBelow) {
  const CLI::Validator check = finite_number_from(0);
  for (const char* good : {"0", "1e-4", "2.5"}) {
    EXPECT_EQ(said(check, good), "") << good;
  }
  for (const char* bad : {"-1e-9", "nan", "inf", "", "1,5", "two"}) {
    EXPECT_EQ(said(check, bad), concat("expected a finite number of at least 0, got ", bad));
  }
}

TEST(NumberAbove, TakesInfinityToo) {
  const CLI::Validator check = number_above(0);
  EXPECT_EQ(said(check, "0.5"), "");
  EXPECT_EQ(said(check, "inf"), "");
  EXPECT_EQ(said(check, "0"), "expected a number above 0, got 0");
  EXPECT_EQ(said(check, "nan"), "expected a number above 0, got nan");
}

TEST(OneOf, NamesTheWords) {
  const CLI::Validator check = one_of({"auto", "uint16", "uint32"});
  EXPECT_EQ(said(check, "uint16"), "");
  EXPECT_EQ(said(check, "int"), "expected auto, uint16 or uint32, got int");
}

TEST(AnyText, RefusesNothing) {
  const CLI::Validator check = any_text("a directory");
  EXPECT_EQ(said(check, "x"), "");
  EXPECT_EQ(said(check, ""), "expected a directory, got nothing");
}

TEST(NumericFlags, AreRefusedWithWhatWasExpectedAndGot) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> lines = {
      {{"plan", "m", "--ranks", "0"}, "expected a whole number from 1 to 65536, got 0"},
      {{"plan", "m", "--ranks", "2", "--seq", "1"}, "expected a whole number from 2 to 100000000, got 1"},
      {{"plan", "m", "--ranks", "2", "--batch", "0"}, "expected a whole number from 1 to 1000000, got 0"},
      {{"plan", "m", "--ranks", "2", "--ranks-per-host", "x"}, "expected a whole number from 1 to 65536, got x"},
      {{"load", "m", "--ranks", "2", "--threads", "1.5"}, "expected a whole number from 1 to 1024, got 1.5"},
      {{"load", "m", "--ranks", "2", "--rank", "two"}, "expected a whole number from 0 to 65535, got two"},
      {{"load", "m", "--ranks", "2", "--values", "-1"}, "expected a whole number from 0 to"},
      {{"doctor", "m", "--ranks", "99999999999999999999"}, "from 1 to 65536, got 99999999999999999999"},
      {{"inspect", "m", "--tensor", "t", "--first", "-1"}, "expected a whole number from 0 to 1000000000, got -1"},
      {{"demo", "--steps", "1"}, "expected a whole number from 20 to 1000000, got 1"},
      {{"plan", "m", "--ranks", "2", "--shard-dim", "middle"}, "expected last or first, got middle"},
  };
  for (const auto& [words, why] : lines) {
    const Answer answer = run(words);
    EXPECT_EQ(answer.status, 2);
    const std::string flag = words[words.size() - 2];
    EXPECT_THAT(
        answer.err,
        AllOf(HasSubstr("[bad-flag]\n"), HasSubstr(concat("where: ", flag, "\n")), HasSubstr(why), HasSubstr("fix:")));
  }
}

} // namespace
} // namespace tieshard::cli
