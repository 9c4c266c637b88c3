#include "tieshard/core/checkpoint/safetensors_index.h"

#include "tests/core/base/refusal.h"
#include "tests/core/checkpoint/checkpoint_files.h"

namespace tieshard {
namespace {

void expect_refused(Code code, const std::string& text, std::vector<std::string> named) {
  SCOPED_TRACE(text);
  named.emplace_back(kIndexFile);
  expect_refusal<InputError>(code, named, [&] { parse_safetensors_index(text, kIndexFile); });
}

TEST(SafetensorsIndex, ListsEachFileOnceSorted) {
  const SafetensorsIndex index =
      parse_safetensors_index(index_text({{"x", "b"}, {"y", "a"}, {"z", "b"}}, R"({"total_size": 12})"), kIndexFile);
  EXPECT_THAT(index.files(), testing::ElementsAre("a", "b"));
  EXPECT_EQ(index.weight_map.at("z"), "b");
  EXPECT_EQ(index.total_size, "12");
}

TEST(SafetensorsIndex, MetadataIsOptional) {
  for (const char* text : {R"({"weight_map":{"x":"a"}})",
                           R"({"metadata":null,"weight_map":{"x":"a"}})",
                           R"({"metadata":{},"weight_map":{"x":"a"}})",
                           R"({"metadata":{"total_size":null},"weight_map":{"x":"a"}})"}) {
    EXPECT_EQ(parse_safetensors_index(text, kIndexFile).total_size, std::nullopt) << text;
  }
}

TEST(SafetensorsIndex, RefusesAnIndexWithoutAWeightMap) {
  for (const char* text : {"{}",
                           "[]",
                           "7",
                           "\"weight_map\"",
                           R"({"weight_map":null})",
                           R"({"weight_map":{}})",
                           R"({"weight_map":["x"]})",
                           R"({"metadata":{"weight_map":{"x":"a"}}})"}) {
    expect_refused(Code::kIndexMalformed, text, {"weight_map"});
  }
}

TEST(SafetensorsIndex, GivesTotalSizeAsDigitsHoweverItIsWritten) {
  const auto total = [](const std::string& value) {
    const std::string metadata = R"({"total_size":)" + value + "}";
    return parse_safetensors_index(index_text({{"x", "a"}}, metadata), kIndexFile).total_size;
  };
  EXPECT_EQ(total("5000"), "5000");
  EXPECT_EQ(total("5e3"), "5000");
  EXPECT_EQ(total("5000.0"), "5000");
  EXPECT_EQ(total("18446744073709551616"), "18446744073709551616");
  EXPECT_EQ(total("\"5000\""), "\"5000\"");
  EXPECT_EQ(total("null"), std::nullopt);
}

TEST(SafetensorsIndex, RefusesTextThatIsNotJson) {
  expect_refused(Code::kIndexMalformed, "", {"json-malformed"});
  expect_refused(Code::kIndexMalformed, R"({"weight_map":{"x":"a")", {"json-malformed", "line 1"});
  expect_refused(Code::kIndexMalformed, R"({"weight_map":{"x":"a","x":"b"}})", {"json-duplicate-key", "key x"});
}

TEST(SafetensorsIndex, RefusesFilesThatAreNoStrings) {
  for (const char* value : {"1", "null", "[\"a\"]", "{}"}) {
    expect_refused(Code::kIndexMalformed, std::string(R"({"weight_map":{"x":)") + value + "}}", {"x", value});
  }
}

TEST(SafetensorsIndex, RefusesEveryNameThatIsNotPlainlyInTheDirectory) {
  for (const char* file : {"../outside.safetensors",
                           "/etc/passwd",
                           "sub/a.safetensors",
                           "./a.safetensors",
                           "..",
                           ".",
                           "",
                           "a/../../b",
                           "..\\\\b",
                           "C:\\\\b",
                           "a\\u0000.safetensors",
                           "\\u002e\\u002e/b",
                           "a/"}) {
    expect_refused(Code::kPathEscape, index_text({{"x", file}}), {"weight_map", "x"});
  }
  expect_refused(Code::kPathEscape, index_text({{"x", "../outside.safetensors"}}), {"../outside.safetensors"});
}

TEST(SafetensorsIndex, AllowsDotsInsideNames) {
  EXPECT_NO_THROW(parse_safetensors_index(index_text({{"x", "a..b.safetensors"}, {"y", "..c"}}), kIndexFile));
}

TEST(SafetensorsIndex, WhatIsWrittenReadsBack) {
  const SafetensorsIndex index =
      parse_safetensors_index(safetensors_index_text({{"a", "1.safetensors"}, {"b", "2.safetensors"}}, 12), kIndexFile);
  EXPECT_EQ(index.weight_map.at("b"), "2.safetensors");
  EXPECT_EQ(index.weight_map.size(), 2U);
  EXPECT_EQ(index.total_size, "12");
}

} // namespace
} // namespace tieshard
