#include "tieshard/core/checkpoint/safetensors_header.h"

#include "tests/core/base/refusal.h"
#include "tests/core/checkpoint/checkpoint_files.h"

namespace tieshard {
namespace {

SafetensorsHeader parse(const std::string& members, std::uint64_t data_bytes) {
  return parse_safetensors_header("{" + members + "}", data_bytes, kSingleFile);
}

void expect_refused(Code code, const std::string& members, std::uint64_t data_bytes, std::vector<std::string> named) {
  SCOPED_TRACE(members.substr(0, 100));
  named.emplace_back(kSingleFile);
  expect_refusal<InputError>(code, named, [&] { parse(members, data_bytes); });
}

void expect_text_refused(Code code, const std::string& text, std::vector<std::string> named) {
  SCOPED_TRACE(text.substr(0, 100));
  named.emplace_back(kSingleFile);
  expect_refusal<InputError>(code, named, [&] { parse_safetensors_header(text, 0, kSingleFile); });
}

TEST(SafetensorsHeader, GivesEveryFieldInTheOrderOfTheBytes) {
  const std::string text = R"({"__metadata__":{"format":"pt"},)" + entry("late", "BF16", "[2,3]", "[8,20]") + "," +
                           entry("early", "F64", "[]", "[0,8]") + "}   ";
  const SafetensorsHeader header = parse_safetensors_header(text, 20, kSingleFile);
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "early");
  EXPECT_EQ(header.tensors[0].dtype, DType::kF64);
  EXPECT_EQ(header.tensors[0].shape, Shape{});
  EXPECT_EQ(header.tensors[1].name, "late");
  EXPECT_EQ(header.tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(header.tensors[1].shape, (Shape{2, 3}));
  EXPECT_EQ(header.tensors[1].begin, 8U);
  EXPECT_EQ(header.tensors[1].end, 20U);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(header.data_start, 8 + text.size()) << "trailing spaces belong to the header";
}

TEST(SafetensorsHeader, AcceptsEveryDtypeOfTheFormat) {
  const std::vector<std::pair<const char*, int>> bits = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [dtype, size] : bits) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(size) * 4 / 8;
    const SafetensorsHeader header = parse(entry("t", dtype, "[2,2]", "[0," + std::to_string(bytes) + "]"), bytes);
    EXPECT_EQ(name(header.tensors.at(0).dtype), dtype);
  }
}

TEST(SafetensorsHeader, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(parse("", 0).tensors.empty());
  EXPECT_TRUE(parse(R"("__metadata__":{})", 0).tensors.empty());
}

TEST(SafetensorsHeader, AcceptsZeroSizeTensorsAtEveryBoundary) {
  const SafetensorsHeader header =
      parse(entry("z0", "F32", "[0,8]", "[0,0]") + "," + entry("a", "U8", "[4]", "[0,4]") + "," +
                entry("z4", "F32", "[8,0]", "[4,4]") + "," + entry("y4", "F4", "[0]", "[4,4]") + "," +
                entry("b", "U8", "[2]", "[4,6]") + "," + entry("z6", "BOOL", "[0]", "[6,6]"),
            6);
  std::vector<std::string> names;
  for (const TensorEntry& tensor : header.tensors) {
    names.push_back(tensor.name);
  }
  EXPECT_THAT(names, testing::ElementsAre("z0", "a", "y4", "z4", "b", "z6"));
}

TEST(SafetensorsHeader, RefusesAZeroSizeTensorInsideAnother) {
  expect_refused(
      Code::kOverlap, entry("a", "U8", "[4]", "[0,4]") + "," + entry("z", "U8", "[0]", "[2,2]"), 4, {"a", "z"});
}

TEST(SafetensorsHeader, DecodesEscapedNames) {
  EXPECT_EQ(parse(entry("model\\u002enorm.w\\u0065ight", "U8", "[1]", "[0,1]"), 1).tensors.at(0).name,
            "model.norm.weight");
}

TEST(SafetensorsHeader, TakesNullMetadataAsAbsent) {
  EXPECT_TRUE(parse(R"("__metadata__":null)", 0).metadata.empty());
}

TEST(SafetensorsHeader, RefusesMetadataThatIsNotStrings) {
  expect_refused(
      Code::kMetadataNotString, R"("__metadata__":{"format":"pt","step":1200})", 0, {"__metadata__", "step", "1200"});
  expect_refused(Code::kMetadataNotString, R"("__metadata__":{"a":null})", 0, {"__metadata__, a"});
  expect_refused(Code::kMetadataNotString, R"("__metadata__":{"a":{"b":"c"}})", 0, {"__metadata__, a"});
  expect_refused(Code::kMetadataNotString, R"("__metadata__":"pt")", 0, {"__metadata__", "object"});
  expect_refused(Code::kMetadataNotString, R"("__metadata__":[])", 0, {"__metadata__", "object"});
}

TEST(SafetensorsHeader, RefusesTextThatDoesNotBeginWithABrace) {
  for (const char* text : {"", " {}", "\n{}", "[]", "null", "\xEF\xBB\xBF{}"}) {
    expect_text_refused(Code::kHeaderNotJson, text, {"'{'"});
  }
}

TEST(SafetensorsHeader, RefusesTextThatIsNotJson) {
  expect_text_refused(Code::kHeaderNotJson, "{\"a\":", {"JSON", "line 1"});
  expect_text_refused(Code::kHeaderNotJson, "{} {}", {"JSON"});
  expect_text_refused(Code::kHeaderNotJson, std::string("{}\0\0\0\0", 6), {"NUL"});
  expect_text_refused(Code::kHeaderNotJson, "{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}", {"128"});
}

TEST(SafetensorsHeader, RefusesTextThatIsNotUtf8) {
  expect_text_refused(Code::kHeaderNotUtf8, "{\"model.norm.w\xff\":{}}", {"UTF-8", "byte 14"});
}

TEST(SafetensorsHeader, RefusesADuplicateKeyOnEveryLevel) {
  const std::string one = entry("w", "F32", "[1]", "[0,4]");
  expect_refused(Code::kDuplicateKey, one + "," + entry("w", "I32", "[1]", "[0,4]"), 4, {"w"});
  expect_refused(Code::kDuplicateKey, one + "," + one, 4, {"w"});
  expect_refused(
      Code::kDuplicateKey, R"("w":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]})", 1, {"dtype"});
  expect_refused(Code::kDuplicateKey, R"("__metadata__":{"a":"1","a":"2"})", 0, {"a"});
  expect_refused(Code::kDuplicateKey, R"("__metadata__":{},"__metadata__":{})", 0, {"__metadata__"});
}

TEST(SafetensorsHeader, RefusesAnEntryWithoutItsFields) {
  expect_refused(Code::kBadEntry, R"("w":[])", 0, {"w", "object"});
  expect_refused(Code::kBadEntry, R"("w":null)", 0, {"w", "object"});
  expect_refused(Code::kBadEntry, R"("w":{"shape":[1],"data_offsets":[0,1]})", 1, {"w", "dtype"});
  expect_refused(Code::kBadEntry, R"("w":{"dtype":"U8","data_offsets":[0,1]})", 1, {"w", "shape"});
  expect_refused(Code::kBadEntry, R"("w":{"dtype":"U8","shape":[1]})", 1, {"w", "data_offsets"});
}

TEST(SafetensorsHeader, RefusesAFieldOfTheWrongType) {
  expect_refused(Code::kBadEntry, R"("w":{"dtype":8,"shape":[1],"data_offsets":[0,1]})", 1, {"w", "dtype"});
  expect_refused(Code::kBadEntry, entry("w", "U8", "1", "[0,1]"), 1, {"w", "shape"});
  expect_refused(Code::kBadEntry, entry("w", "U8", "null", "[0,1]"), 1, {"w", "shape"});
  for (const char* range : {"null", "0", "[]", "[0]", "[0,1,2]", "[0,1.0]", "[-1,0]", "[\"0\",\"1\"]", "[0,1e0]"}) {
    expect_refused(Code::kBadEntry, entry("w", "U8", "[1]", range), 1, {"w", "data_offsets"});
  }
}

TEST(SafetensorsHeader, IgnoresFurtherFieldsAsTheReferenceReaderDoes) {
  EXPECT_EQ(parse(R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"note":{"x":[1]}})", 1).tensors.size(), 1U);
}

TEST(SafetensorsHeader, RefusesADtypeThatTheFormatDoesNotHave) {
  for (const char* dtype : {"F24", "", "f32", "BF16 "}) {
    expect_refused(Code::kUnknownDtype, entry("w", dtype, "[1]", "[0,1]"), 1, {"w", dtype});
  }
}

TEST(SafetensorsHeader, RefusesShapesThatAreNotNonNegativeIntegers) {
  for (const char* size : {"-8",
                           "8.0",
                           "\"8\"",
                           "null",
                           "[8]",
                           "true",
                           "9007199254740993",
                           "9223372036854775808",
                           "18446744073709551615",
                           "18446744073709551616"}) {
    expect_refused(Code::kBadShape, entry("w", "U8", std::string("[") + size + "]", "[0,8]"), 8, {"w"});
  }
  expect_refused(Code::kBadShape, entry("w", "U8", "[2,-8]", "[0,8]"), 8, {"w", "-8"});
}

TEST(SafetensorsHeader, RefusesSizesThatOverflow) {
  expect_refused(
      Code::kSizeOverflow, entry("w", "F32", "[4294967296,4294967296]", "[0,0]"), 0, {"w", "[4294967296, 4294967296]"});
  expect_refused(Code::kSizeOverflow, entry("w", "F32", "[2147483648,2147483648]", "[0,0]"), 0, {"w"});
  expect_refused(Code::kSizeOverflow, entry("w", "U8", "[0,4294967296,4294967296]", "[0,0]"), 0, {"w"});
}

TEST(SafetensorsHeader, RefusesOffsetsBeyond63Bits) {
  expect_refused(
      Code::kSizeOverflow, entry("w", "U8", "[1]", "[18446744073709551615,0]"), 1, {"w", "18446744073709551615"});
  expect_refused(Code::kSizeOverflow, entry("w", "U8", "[1]", "[0,9223372036854775808]"), 1, {"w"});
}

TEST(SafetensorsHeader, RefusesARangeThatIsNotShapeTimesDtype) {
  expect_refused(Code::kSizeMismatch, entry("w", "F64", "[8]", "[0,32]"), 32, {"w", "F64", "[8]", "64", "32"});
  expect_refused(Code::kSizeMismatch, entry("w", "U8", "[]", "[0,0]"), 0, {"w", "[]"});
  expect_refused(Code::kSizeMismatch, entry("w", "U8", "[0]", "[0,1]"), 1, {"w", "[0]"});
}

TEST(SafetensorsHeader, RefusesPackedElementsThatDoNotFillBytes) {
  expect_refused(Code::kSizeMismatch, entry("w", "F4", "[3]", "[0,2]"), 2, {"w", "F4", "[3]", "4 bits"});
  expect_refused(Code::kSizeMismatch, entry("w", "F6_E2M3", "[2]", "[0,2]"), 2, {"w", "6 bits"});
}

TEST(SafetensorsHeader, RefusesARangeThatEndsBeforeItBegins) {
  expect_refused(Code::kOffsetsReversed, entry("w", "U8", "[4]", "[4,0]"), 4, {"w", "[4,0]"});
}

TEST(SafetensorsHeader, RefusesOverlapNamingBothTensorsAndRanges) {
  expect_refused(Code::kOverlap,
                 entry("head", "U8", "[4]", "[0,4]") + "," + entry("embed", "U8", "[4]", "[0,4]"),
                 4,
                 {"head", "embed", "[0, 4]"});
  expect_refused(Code::kOverlap,
                 entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[3,7]"),
                 7,
                 {"a [0, 4]", "b [3, 7]"});
}

TEST(SafetensorsHeader, RefusesAHoleNamingItsEnds) {
  expect_refused(Code::kHole,
                 entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[68,72]"),
                 72,
                 {"b", "4 to 68", "64 bytes"});
  expect_refused(Code::kHole, entry("a", "U8", "[4]", "[1,5]"), 5, {"a", "0 to 1"});
}

TEST(SafetensorsHeader, RefusesAFileThatEndsBeforeItsTensors) {
  const std::string members = entry("a", "U8", "[4]", "[0,4]");
  const std::size_t start = 8 + members.size() + 2;
  expect_refused(Code::kTruncated, members, 3, {std::to_string(start + 4), std::to_string(start + 3)});
}

TEST(SafetensorsHeader, RefusesBytesAfterTheLastTensor) {
  const std::string members = entry("a", "U8", "[4]", "[0,4]");
  const std::size_t start = 8 + members.size() + 2;
  expect_refused(Code::kTrailingBytes, members, 516, {std::to_string(start + 4), std::to_string(start + 516), "512"});
  expect_refused(Code::kTrailingBytes, "", 1, {"1 bytes too many"});
}

TEST(SafetensorsHeader, IgnoresFieldsThatTheFormatDoesNotHave) {
  const SafetensorsHeader header = parse(
      R"("t":{"extra":{"a":[1,{"b":null}]},"dtype":"U8","more":true,"shape":[1],"data_offsets":[0,1],"x":"y"})", 1);
  EXPECT_EQ(header.tensors.at(0).name, "t");
}

TEST(SafetensorsHeader, RefusesAFieldThatStandsTwiceInAnEntry) {
  expect_refused(
      Code::kDuplicateKey, R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"d\u0074ype":"I8"})", 1, {"dtype"});
}

TEST(SafetensorsHeader, RefusesMoreDimensionsThanAnyTensorHas) {
  const auto ones = [](int count) {
    std::string sizes = "1";
    for (int i = 1; i < count; ++i) {
      sizes += ",1";
    }
    return "[" + sizes + "]";
  };
  EXPECT_EQ(parse(entry("t", "U8", ones(64), "[0,1]"), 1).tensors.at(0).shape.size(), 64U);
  expect_refused(Code::kBadShape, entry("t", "U8", ones(65), "[0,1]"), 1, {"t", "64 dimensions, got 65"});
}

TEST(SafetensorsHeader, RefusesMoreMetadataThanTheLimit) {
  std::string metadata = R"("__metadata__":{"0":"")";
  for (int i = 1; i <= 250'000; ++i) {
    metadata += ",\"" + std::to_string(i) + R"(":"")";
  }
  expect_refused(Code::kHeaderTooLarge, metadata + "}", 0, {"__metadata__", "250000"});
}

} // namespace
} // namespace tieshard
