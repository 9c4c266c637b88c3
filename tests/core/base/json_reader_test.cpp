#include "tieshard/core/base/json_reader.h"

#include <gtest/gtest.h>

#include "tests/core/base/refusal.h"

namespace tieshard {
namespace {

using Kind = JsonReader::Kind;

TEST(JsonReader, GivesMembersInTheOrderOfTheText) {
  const std::string text = R"( {"b": [1, "two", null], "a": {"x": true}, "c": -2.5e3} )";
  JsonReader reader(text, "file.json");
  ASSERT_EQ(reader.kind(), Kind::kObject);
  reader.enter_object();
  EXPECT_EQ(reader.next_key(), "b");
  reader.enter_array();
  ASSERT_TRUE(reader.next_element());
  EXPECT_EQ(reader.kind(), Kind::kNumber);
  EXPECT_EQ(reader.skip(), "1");
  ASSERT_TRUE(reader.next_element());
  EXPECT_EQ(reader.string(), "two");
  ASSERT_TRUE(reader.next_element());
  EXPECT_EQ(reader.kind(), Kind::kNull);
  reader.skip();
  EXPECT_FALSE(reader.next_element());
  EXPECT_EQ(reader.next_key(), "a");
  EXPECT_EQ(reader.skip(), R"({"x": true})");
  EXPECT_EQ(reader.next_key(), "c");
  EXPECT_EQ(reader.skip(), "-2.5e3");
  EXPECT_EQ(reader.next_key(), std::nullopt);
  reader.finish();
}

TEST(JsonReader, DecodesEscapesInKeysAndStrings) {
  const std::string text = R"({"\u0061\"\\\/\b\f\n\r\t": "\u00e9\ud83d\ude00"})";
  JsonReader reader(text, "file.json");
  reader.enter_object();
  EXPECT_EQ(reader.next_key(), "a\"\\/\b\f\n\r\t");
  EXPECT_EQ(reader.string(), "\u00e9\U0001F600");
}

TEST(JsonReader, KeepsAKeyUntilItsObjectCloses) {
  const std::string text = R"({"\u006buter": {"\u0069nner": {"\u0064eep": 1}}})";
  JsonReader reader(text, "file.json");
  reader.enter_object();
  const auto outer = reader.next_key();
  reader.enter_object();
  const auto inner = reader.next_key();
  reader.skip();
  EXPECT_EQ(inner, "inner");
  reader.next_key();
  EXPECT_EQ(outer, "kuter");
}

TEST(JsonReader, ChecksWhatItSkips) {
  for (const char* text : {R"({"a": {"b": [1, {"x": 1, "x": 2}]}})", R"({"a": {"b": 1, "\u0062": 2}})"}) {
    expect_refusal<InputError>(
        Code::kJsonDuplicateKey, {"file.json"}, [text] { JsonReader(text, "file.json").skip(); });
  }
  for (const char* text : {R"(["\ud800"])", R"(["\udc00\ud800"])", R"(["\u12g4"])", "[1e999]", "[tru]", "[nul]"}) {
    expect_refusal<InputError>(Code::kJsonMalformed, {"file.json"}, [text] { JsonReader(text, "file.json").skip(); });
  }
}

TEST(JsonReader, FindsADuplicateAmongAnyNumberOfKeys) {
  for (const int keys : {2, 8, 9, 10, 1000}) {
    for (const int again : {0, keys / 2, keys - 1}) {
      std::string text = "{";
      for (int i = 0; i < keys; ++i) {
        text += "\"k" + std::to_string(i) + "\":0,";
      }
      text += "\"k" + std::to_string(again) + "\":0}";
      expect_refusal<InputError>(Code::kJsonDuplicateKey, {"key k" + std::to_string(again)}, [&text] {
        JsonReader(text, "file.json").skip();
      });
    }
  }
}

TEST(JsonReader, SaysWhatItExpectedAndGot) {
  expect_refusal<InputError>(Code::kJsonMalformed, {"line 1, column 4", "expected a value, got \"\u00e9\""}, [] {
    JsonReader("[1,\u00e9]", "f").skip();
  });
  expect_refusal<InputError>(
      Code::kJsonMalformed, {"got the end of the text"}, [] { JsonReader("{\"a\":", "f").skip(); });
}

TEST(JsonReader, TakesNumbersTooSmallForADoubleAsZeroAndRefusesTooLargeOnes) {
  EXPECT_NO_THROW(JsonReader("[1e-999, 0.0000001e-320, 1e308, 0e999999999999]", "f").skip());
  for (const std::string& number : {std::string("1e309"), "-1" + std::string(400, '0'), std::string("1e99999999999")}) {
    expect_refusal<InputError>(Code::kJsonMalformed, {"double"}, [&] { JsonReader(number, "f").skip(); });
  }
}

TEST(JsonReader, ReadsPlainUnsignedIntegersOnly) {
  EXPECT_EQ(json_unsigned("0"), 0U);
  EXPECT_EQ(json_unsigned("18446744073709551615"), 18446744073709551615U);
  for (const char* text : {"18446744073709551616", "-1", "-0", "1.0", "1e3", "\"1\"", "null", "", "[1]"}) {
    EXPECT_EQ(json_unsigned(text), std::nullopt) << text;
  }
}

} // namespace
} // namespace tieshard
