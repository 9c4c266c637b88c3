#include "tieshard/core/checkpoint/safetensors_file.h"

#include <algorithm>
#include <utility>

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/checkpoint/checkpoint_files.h"

namespace tieshard {
namespace {

void expect_refused(Code code,
                    const std::string& bytes,
                    std::vector<std::string> named,
                    SafetensorsLimits limits = {}) {
  SCOPED_TRACE(bytes.substr(0, 40));
  const TempDir dir;
  const std::filesystem::path path = dir.write(kSingleFile, bytes);
  named.push_back(path.string());
  expect_refusal<InputError>(code, named, [&] { SafetensorsFile::open(path, limits); });
}

TEST(SafetensorsFile, FindsTensorsByExactNameAndGivesTheirBytes) {
  const TempDir dir;
  const SafetensorsFile file =
      SafetensorsFile::open(dir.write("f", u8_file({{"b", "BB"}, {"a.weight", "A"}, {"a", "xyz"}, {"empty", ""}})));
  EXPECT_EQ(file.size(), dir.read("f").size());
  const TensorEntry* found = file.find("a");
  ASSERT_NE(found, nullptr);
  std::string bytes(3, '\0');
  file.file().read_at(file.header().data_start + found->begin, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, "xyz");
  for (const char* name : {"b", "a.weight", "empty"}) {
    ASSERT_NE(file.find(name), nullptr) << name;
    EXPECT_EQ(file.find(name)->name, name);
  }
  for (const char* name : {"", "a.", "c", "A", "__metadata__"}) {
    EXPECT_EQ(file.find(name), nullptr) << name;
  }
}

TEST(SafetensorsFile, CanBeMoved) {
  const TempDir dir;
  SafetensorsFile first = SafetensorsFile::open(dir.write("f", u8_file({{"b", "BB"}, {"a", "A"}})));
  const SafetensorsFile second = std::move(first);
  ASSERT_NE(second.find("b"), nullptr);
  EXPECT_EQ(second.find("b")->end, 2U);
}

TEST(SafetensorsFile, AsksForNoAlignment) {
  const TempDir dir;
  std::string header = "{" + entry("w", "F64", "[1]", "[0,8]") + "}";
  header += header.size() % 2 == 0 ? " " : "";
  EXPECT_EQ(SafetensorsFile::open(dir.write("f", packed(header, "12345678"))).header().data_start % 2, 1U);
}

TEST(SafetensorsFile, RefusesAnEmptyFile) {
  expect_refused(Code::kFileEmpty, "", {"0 bytes"});
}

TEST(SafetensorsFile, RefusesAFileThatEndsInTheLength) {
  expect_refused(Code::kTruncated, std::string("\2\0\0", 3), {"8 bytes", "3 bytes"});
}

TEST(SafetensorsFile, RefusesAHeaderOfNoBytes) {
  expect_refused(Code::kHeaderNotJson, length_prefix(0), {"0 bytes"});
  expect_refused(Code::kHeaderNotJson, std::string(1000, '\0'), {"0 bytes"});
}

TEST(SafetensorsFile, RefusesAHeaderLongerThanTheFileBeforeReadingIt) {
  expect_refused(Code::kHeaderLongerThanFile, length_prefix(90909) + "{}", {"90909", "10 bytes"});
  expect_refused(Code::kHeaderLongerThanFile, length_prefix(3) + "{}", {"of 3"});
  expect_refused(Code::kHeaderLongerThanFile, length_prefix(2), {"of 2"});
  expect_refused(Code::kHeaderLongerThanFile, length_prefix(~std::uint64_t{0}) + "{}", {"18446744073709551615"});
}

TEST(SafetensorsFile, RefusesAHeaderAboveTheLimitThatACallerCanRaise) {
  const std::string bytes = u8_file({{"a", "A"}});
  const std::uint64_t header = bytes.size() - 8 - 1;
  expect_refused(Code::kHeaderTooLarge,
                 bytes,
                 {std::to_string(header - 1), std::to_string(header)},
                 {.max_header_bytes = header - 1});
  const TempDir dir;
  EXPECT_NO_THROW(SafetensorsFile::open(dir.write("f", bytes), {.max_header_bytes = header}));
}

TEST(SafetensorsFile, LimitsHeadersToAHundredMegabytesByDefault) {
  const TempDir dir;
  const std::filesystem::path path = dir.write(kSingleFile, length_prefix(100'000'001) + "{");
  std::filesystem::resize_file(path, 8 + 100'000'001); // sparse
  expect_refusal<InputError>(Code::kHeaderTooLarge, {"100000000", "100000001"}, [&] { SafetensorsFile::open(path); });
}

TEST(SafetensorsFile, RecognisesALengthWithItsBytesReversed) {
  std::string bytes = u8_file({{"a", "A"}});
  std::reverse(bytes.begin(), bytes.begin() + 8);
  expect_refused(Code::kBigEndian, bytes, {"big-endian", std::to_string(bytes.size() - 8 - 1)});
}

TEST(SafetensorsFile, NamesTheFormatThatTheFileHasInstead) {
  const std::vector<std::pair<std::string, const char*>> formats = {
      {std::string("PK\3\4\x14\0\0\0\0\0\0\0", 12), "zip"},
      {std::string("\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15), "pickle"},
      {std::string("\x80\4\x95") + std::string(20, '\0'), "pickle"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:5eed\nsize 4886466168\n", "Git LFS"},
      {"<!DOCTYPE html>\n<html><head>", "HTML"},
      {"\n  <HTML><body>Log in first.</body>", "HTML"},
      {std::string("GGUF\3\0\0\0", 8), "GGUF"},
      {std::string("\x89HDF\r\n\x1a\n") + std::string(20, '\0'), "HDF5"},
      {std::string("\x1f\x8b\x08\0\0\0\0\0\0\3", 10), "gzip"},
      {std::string("\x93NUMPY\1\0", 8), "NumPy"},
      {std::string("\x28\xb5\x2f\xfd\4\0\0\0\0", 9), "Zstandard"},
      {std::string("\xfd") + "7zXZ" + std::string(8, '\0'), "xz"},
      {"BZh91AY&SY", "bzip2"},
      {"model.bin" + std::string(248, '\0') + "ustar" + std::string(250, '\0'), "tar"},
      {R"({"error": "Repository not found"})", "JSON"},
      {"GGUF", "GGUF"}, // shorter than a header length
  };
  for (const auto& [bytes, format] : formats) {
    expect_refused(Code::kNotSafetensors, bytes, {format});
  }
}

TEST(SafetensorsFile, SaysThatAFileOfNoKnownFormatIsNoSafetensors) {
  expect_refused(Code::kNotSafetensors, "hello, these are my weights", {"'{' at byte 8"});
}

TEST(SafetensorsFile, IsNotMisledByALengthThatLooksLikeAnotherFormat) {
  const TempDir dir;
  const std::uint64_t gzip_magic = 0x8b1f; // a header length of 35,615 bytes
  std::string header = "{" + entry("a", "U8", "[1]", "[0,1]") + "}";
  header.resize(gzip_magic, ' ');
  EXPECT_NO_THROW(SafetensorsFile::open(dir.write("f", packed(header, "A"))));
}

TEST(SafetensorsFile, NamesTheFileInErrorsOfItsHeader) {
  expect_refused(
      Code::kTruncated, packed("{" + entry("a", "U8", "[4]", "[0,4]") + "}", "123"), {"1 bytes are missing"});
  expect_refused(Code::kTrailingBytes, u8_file({{"a", "A"}}) + "x", {"1 bytes too many"});
  expect_refused(Code::kHeaderNotJson, packed("{\"a\":", ""), {"header, line 1"});
}

TEST(SafetensorsFile, RefusesADirectoryAndAMissingFile) {
  const TempDir dir;
  expect_refusal<InputError>(Code::kFileUnreadable, {"directory"}, [&] { SafetensorsFile::open(dir.path()); });
  expect_refusal<InputError>(Code::kFileNotFound, {"absent"}, [&] { SafetensorsFile::open(dir / "absent"); });
}

} // namespace
} // namespace tieshard
