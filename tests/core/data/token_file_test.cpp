#include "tieshard/core/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/data/token_files.h"
#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using ::testing::ElementsAre;

constexpr TokenFileOptions kAny{.vocab_size = 1 << 20};

std::vector<std::int64_t> all_of(const TokenFile& file) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.tokens()));
  file.read(0, tokens);
  return tokens;
}

TokenFileOptions with(TokenFormat format, TokenDtype dtype = TokenDtype::kAuto) {
  return {.format = format, .dtype = dtype, .vocab_size = 1 << 20};
}

TEST(TokenFile, WithoutAHeaderIsRawInTheDtypeThatTheVocabularyNeeds) {
  const TempDir dir;
  const TokenFile narrow =
      TokenFile::open(write(dir / "a.bin", as<std::uint16_t>({5, 6, 65535})), {.vocab_size = 65536});
  EXPECT_EQ(narrow.layout(), (TokenLayout{TokenFormat::kRaw, TokenType::kUint16, 0, 3}));
  EXPECT_THAT(all_of(narrow), ElementsAre(5, 6, 65535));
  const TokenFile wide = TokenFile::open(write(dir / "b.bin", as<std::uint32_t>({5, 65536})), {.vocab_size = 65537});
  EXPECT_EQ(wide.layout(), (TokenLayout{TokenFormat::kRaw, TokenType::kUint32, 0, 2}));
  EXPECT_THAT(all_of(wide), ElementsAre(5, 65536));
}

TEST(TokenFile, IsReadFromAnyToken) {
  const TempDir dir;
  const TokenFile file =
      TokenFile::open(write(dir / "a", llmc_header(20240520, 1, 4) + as<std::uint16_t>({7, 8, 9, 10})), kAny);
  std::vector<std::int64_t> two(2);
  file.read(1, two);
  EXPECT_THAT(two, ElementsAre(8, 9));
}

TEST(TokenFile, WithLlmCsMagicIsUint16OrUint32ByItsVersion) {
  const TempDir dir;
  const auto gpt2 = write(dir / "a.bin", llmc_header(20240520, 1, 3) + as<std::uint16_t>({1, 2, 50256}));
  EXPECT_EQ(TokenFile::open(gpt2, kAny).layout(), (TokenLayout{TokenFormat::kLlmC, TokenType::kUint16, 1024, 3}));
  EXPECT_THAT(all_of(TokenFile::open(gpt2, kAny)), ElementsAre(1, 2, 50256));
  const auto llama3 = write(dir / "b.bin", llmc_header(20240801, 7, 2) + as<std::uint32_t>({128000, 1}));
  EXPECT_EQ(TokenFile::open(llama3, kAny).layout(), (TokenLayout{TokenFormat::kLlmC, TokenType::kUint32, 1024, 2}));
  EXPECT_THAT(all_of(TokenFile::open(llama3, kAny)), ElementsAre(128000, 1));
}

TEST(TokenFile, OfLlmCsThatContradictsItselfIsRefused) {
  const TempDir dir;
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    expect_refusal([&] { TokenFile::open(write(dir / "a.bin", bytes), kAny); }, Code::kDataMalformed, {"a.bin", why});
  };
  refused(llmc_header(20240520, 2, 1) + as<std::uint16_t>({1}), "expected version 1, got 2");
  refused(llmc_header(20240801, 1, 1) + as<std::uint16_t>({1}), "expected version 7, got 1");
  refused(llmc_header(20240520, 1, 3) + as<std::uint16_t>({1, 2}), "expected 3 tokens of 2 bytes");
  refused(llmc_header(20240520, 1, 1) + as<std::uint16_t>({1, 2}), "got 1028 bytes in all");
  refused(llmc_header(20240520, 1, -1), "expected -1 tokens");
  refused(llmc_header(20240520, 1, 3).substr(0, 12), "got 12 bytes in all");
  refused(llmc_header(20240522, 1, 3), "multiple-choice evaluations");
}

TEST(TokenFile, OfMegatronIsFoundByEitherFileOrTheirName) {
  const TempDir dir;
  write(dir / "text.bin", as<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  write(dir / "text.idx", three_documents().bytes());
  for (const char* name : {"text.bin", "text.idx", "text"}) {
    const TokenFile file = TokenFile::open(dir / name, kAny);
    EXPECT_EQ(file.layout(), (TokenLayout{TokenFormat::kMegatron, TokenType::kUint16, 0, 10})) << name;
    EXPECT_EQ(file.documents(), 3);
    EXPECT_THAT(all_of(file), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
    EXPECT_THAT(files_of_tokens(dir / name), ElementsAre(dir / "text.bin", dir / "text.idx"));
  }
}

template <typename Stored>
void expect_tokens(const TempDir& dir, std::uint8_t code, const std::vector<std::int64_t>& tokens) {
  write(dir / "text.bin", as<Stored>(tokens));
  const auto count = static_cast<std::int64_t>(tokens.size());
  write(dir / "text.idx", Index{.code = code, .lengths = {count}, .pointers = {0}, .documents = {0, 1}}.bytes());
  EXPECT_EQ(all_of(TokenFile::open(dir / "text", kAny)), tokens) << int{code};
}

TEST(TokenFile, OfMegatronHoldsEachOfItsIntegers) {
  const TempDir dir;
  expect_tokens<std::uint8_t>(dir, 1, {0, 255});
  expect_tokens<std::int8_t>(dir, 2, {0, 127});
  expect_tokens<std::int16_t>(dir, 3, {0, 32767});
  expect_tokens<std::int32_t>(dir, 4, {0, 70'000});
  expect_tokens<std::int64_t>(dir, 5, {0, 70'000});
  expect_tokens<std::uint16_t>(dir, 8, {0, 65535});
}

TEST(TokenFile, RefusesANegativeTokenAndOneAboveTheVocabulary) {
  const TempDir dir;
  write(dir / "text.bin", as<std::int32_t>({3, -1}));
  write(dir / "text.idx", Index{.code = 4, .lengths = {2}, .pointers = {0}, .documents = {0, 1}}.bytes());
  expect_refusal([&] { all_of(TokenFile::open(dir / "text", kAny)); },
                 Code::kTokenOutOfRange,
                 {"text.bin, token 1", "expected 0 or above, got -1"});
  const auto raw = write(dir / "raw", as<std::uint16_t>({3, 7}));
  expect_refusal([&] { all_of(TokenFile::open(raw, {.vocab_size = 7})); },
                 Code::kTokenOutOfRange,
                 {"raw, token 1", "expected below 7, got 7"});
}

TEST(TokenFile, BesideSomethingThatIsNoIndexIsRefusedUnlessItIsSaidToBeRaw) {
  const TempDir dir;
  const auto data = write(dir / "text.bin", as<std::uint16_t>({1, 2}));
  write(dir / "text.idx", "TNTIDX\0\0");
  expect_refusal(
      [&] { TokenFile::open(data, kAny); }, Code::kDataMalformed, {"text.idx", "TNTIDX", "--data-format raw"});
  EXPECT_THAT(all_of(TokenFile::open(data, with(TokenFormat::kRaw, TokenDtype::kUint16))), ElementsAre(1, 2));
}

TEST(TokenFile, ThatIsNotWhatItIsSaidToBeIsRefused) {
  const TempDir dir;
  const auto raw = write(dir / "raw.bin", as<std::uint16_t>({1, 2, 3, 4}));
  const auto llmc = write(dir / "llmc.bin", llmc_header(20240520, 1, 1) + as<std::uint16_t>({1}));
  write(dir / "text.bin", as<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  write(dir / "text.idx", three_documents().bytes());
  const auto refused = [](const std::filesystem::path& path, const TokenFileOptions& options, const std::string& why) {
    expect_refusal([&] { TokenFile::open(path, options); }, Code::kDataMalformed, {why});
  };
  refused(raw, with(TokenFormat::kLlmC), "expected llm.c, got raw");
  refused(raw, with(TokenFormat::kMegatron), "expected a file .idx");
  refused(llmc, with(TokenFormat::kRaw), "expected raw, got llm.c");
  refused(llmc, with(TokenFormat::kAuto, TokenDtype::kUint32), "expected uint32, got uint16");
  refused(dir / "text.bin", with(TokenFormat::kRaw), "expected raw, got megatron");
  refused(dir / "text.bin", with(TokenFormat::kAuto, TokenDtype::kUint32), "expected uint32, got uint16");
}

TEST(TokenFile, OfAnotherProgramIsRefusedByName) {
  const TempDir dir;
  const auto array = write(dir / "a.npy", std::string("\x93NUMPY\x01\x00", 8));
  expect_refusal([&] { TokenFile::open(array, kAny); }, Code::kDataMalformed, {"NumPy", "tokenize_text.py"});
  EXPECT_EQ(TokenFile::open(array, with(TokenFormat::kRaw, TokenDtype::kUint16)).tokens(), 4);
  expect_refusal([&] { TokenFile::open(dir / "none", kAny); }, Code::kFileNotFound, {"none"});
}

TEST(TokenFile, ReadNarrowerThanItWasWrittenIsRefusedButNotATextOfZeros) {
  const TempDir dir;
  const TokenFileOptions narrow = with(TokenFormat::kAuto, TokenDtype::kUint16);
  const auto wide = write(dir / "a", as<std::uint32_t>({1, 2, 3, 4, 5}));
  expect_refusal([&] { TokenFile::open(wide, narrow); }, Code::kDataMalformed, {"uint32", "--data-dtype"});
  EXPECT_EQ(TokenFile::open(write(dir / "b", std::string(400, '\0')), narrow).tokens(), 200);
  expect_refusal(
      [&] { TokenFile::open(write(dir / "c", "odd"), narrow); }, Code::kDataMalformed, {"multiple of 2 bytes, got 3"});
}

} // namespace
} // namespace tieshard::testing
