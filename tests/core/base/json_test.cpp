#include "tieshard/core/base/json.h"

#include <nlohmann/json.hpp>

#include "tests/core/base/refusal.h"

namespace tieshard {
namespace {

void expect_refused(Code code, const std::string& text, const std::vector<std::string>& named) {
  SCOPED_TRACE(text.substr(0, 60));
  expect_refusal<InputError>(code, named, [&] { parse_json(text, "file.json"); });
}

std::string nested(std::size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST(Json, BuildsTheDocumentThatTheTextDescribes) {
  const std::string text = R"( {"a": [1, -2, 2.5, {"b": null}, []], "c": {"d": "\u00e9\n", "e": true}, "f": {}} )";
  EXPECT_EQ(parse_json(text, "file.json"), Json::parse(text));
  EXPECT_EQ(parse_json("7\n", "file.json"), Json(7));
  EXPECT_EQ(parse_json("18446744073709551615", "file.json").get<std::uint64_t>(), 18446744073709551615U);
}

TEST(Json, RefusesAKeyThatStandsTwiceInOneObject) {
  expect_refused(
      Code::kJsonDuplicateKey, "{\"a\": 1,\n \"b\": {\"x\": 1, \"x\": 1}}", {"file.json", "key x", "line 2"});
  expect_refused(Code::kJsonDuplicateKey, R"({"a": {}, "\u0061": 1})", {"key a"});
}

TEST(Json, AllowsAKeyInSeveralObjects) {
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "file.json"));
}

TEST(Json, RefusesTextThatIsNotJson) {
  for (const char* text :
       {"",          " ",      "{",          "{} x",        "[1,]",      "{\"a\":1,}", "{'a': 1}", "// c\n{}",
        "/* c */{}", "[NaN]",  "[Infinity]", "[-Infinity]", "[01]",      "[1e999]",    "[+1]",     "[.5]",
        "\"\t\"",    "{a: 1}", "tru",        "\"\\ud800\"", "\"\\x41\"", "{\"a\" 1}",  "[1 2]"}) {
    expect_refused(Code::kJsonMalformed, text, {"file.json"});
  }
}

TEST(Json, SaysWhereTheTextBreaksOff) {
  expect_refused(Code::kJsonMalformed, "{\"a\": 1,\n\"b\": ]", {"file.json, line 2, column 6"});
}

TEST(Json, RefusesWhatTheLibraryWouldSkip) {
  expect_refused(Code::kJsonMalformed, "\xEF\xBB\xBF{}", {"byte order mark"});
  expect_refused(Code::kJsonMalformed, std::string("{}\0", 3), {"NUL"});
  expect_refused(Code::kJsonMalformed, std::string("{}\0{}", 5), {"NUL at byte 2"});
}

TEST(Json, RefusesTextThatIsNotUtf8) {
  for (const char* bytes : {"\xFF",
                            "\x80",
                            "\xC3",
                            "\xC0\x80",
                            "\xC1\xBF",
                            "\xE0\x80\x80",
                            "\xED\xA0\x80",
                            "\xF0\x80\x80\x80",
                            "\xF4\x90\x80\x80",
                            "\xF5\x80\x80\x80",
                            "\xE2\x82",
                            "\xE2\x82\x41",
                            "\xF0\x9F\x98\x41"}) {
    expect_refused(Code::kJsonNotUtf8, std::string("[\"") + bytes + "\"]", {"byte 2 of the text"});
  }
  expect_refused(Code::kJsonNotUtf8, std::string("{}\xFF"), {"file.json"});
}

TEST(Json, KeepsEveryLengthOfUtf8) {
  const std::string text = "\"\u007f\u00e9\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff\"";
  EXPECT_EQ(parse_json(text, "file.json").get<std::string>(), text.substr(1, text.size() - 2));
}

TEST(Json, RefusesNestingBeyond128Levels) {
  EXPECT_NO_THROW(parse_json(nested(128), "file.json"));
  expect_refused(Code::kJsonTooDeep, nested(129), {"128 levels", "column 129"});
  expect_refused(Code::kJsonTooDeep, std::string(1'000'000, '['), {"file.json"});
}

TEST(Json, MessagesStayShortAndPrintable) {
  try {
    parse_json("\"" + std::string(100'000, 'x'), "file.json");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_LT(std::string(error.what()).size(), 1000U);
  }
  expect_refused(Code::kJsonDuplicateKey, R"({"\u001b[2J": 1, "\u001b[2J": 1})", {"\\u001b[2J"});
}

} // namespace
} // namespace tieshard
