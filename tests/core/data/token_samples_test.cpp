#include "tieshard/core/data/token_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/data/token_files.h"
#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Sample {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> labels;
  std::vector<std::int64_t> documents;
};

Sample sample_of(const TokenSamples& data, std::int64_t sample, std::size_t length) {
  Sample out{.ids = std::vector<std::int64_t>(length),
             .labels = std::vector<std::int64_t>(length),
             .documents = std::vector<std::int64_t>(data.has_documents() ? length : 0)};
  data.fill(sample, {.ids = out.ids, .labels = out.labels, .documents = out.documents});
  return out;
}

std::filesystem::path write_three_documents(const TempDir& dir) {
  write(dir / "text.idx", three_documents().bytes());
  return write(dir / "text.bin", as<std::uint16_t>({10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
}

TEST(TokenSamples, AreConsecutiveAndEveryTokenIsALabel) {
  const TempDir dir;
  const auto path = write(dir / "a", as<std::uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  const TokenSamples data = TokenSamples::open(path, {.sequence = 3, .vocab_size = 100});
  EXPECT_EQ(data.samples(), 2);
  EXPECT_FALSE(data.has_documents());
  EXPECT_THAT(sample_of(data, 1, 3).ids, ElementsAre(4, 5, 6));
  EXPECT_THAT(sample_of(data, 1, 3).labels, ElementsAre(4, 5, 6));
  EXPECT_EQ(data.description(), "raw uint16, 7 tokens, 2 samples");
}

TEST(TokenSamples, HaveNoTargetWhereTheMaskIsZero) {
  const TempDir dir;
  const auto path = write(dir / "a", as<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  const auto mask = write(dir / "mask", std::string("\1\0\1\0\0\xFF", 6));
  const TokenSamples data = TokenSamples::open(path, {.sequence = 3, .vocab_size = 100, .label_mask = mask});
  EXPECT_THAT(sample_of(data, 0, 3).labels, ElementsAre(1, -100, 3));
  EXPECT_THAT(sample_of(data, 1, 3).labels, ElementsAre(-100, -100, 6));
  EXPECT_THAT(sample_of(data, 1, 3).ids, ElementsAre(4, 5, 6));
  EXPECT_THAT(data.description(), HasSubstr("3 tokens are targets"));
}

TEST(TokenSamples, CountTargetsFromAPositionOn) {
  const TempDir dir;
  const auto path = write(dir / "a", as<std::uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  const auto mask = write(dir / "mask", std::string("\1\0\1\1\1\0\1", 7));
  const TokenSamples data = TokenSamples::open(path, {.sequence = 3, .vocab_size = 100, .label_mask = mask});
  EXPECT_EQ(data.count_targets(2, 0, 100), 4);
  EXPECT_EQ(data.count_targets(2, 1, 100), 2);
  EXPECT_EQ(data.count_targets(1, 2, 100), 1);
  EXPECT_EQ(data.count_targets(2, 0, 1), 2) << "the rest of the first sample";
}

TEST(TokenSamples, CountingReadsEverySampleAsFarAsItGoes) {
  const TempDir dir;
  const auto path = write(dir / "a", as<std::uint16_t>({1, 2, 3, 4, 500, 6, 0, 0, 0}));
  const TokenSamples data = TokenSamples::open(path, {.sequence = 3, .vocab_size = 100, .document_separator = 0});
  EXPECT_EQ(data.count_targets(1, 1, 100), 2);
  EXPECT_EQ(data.count_targets(2, 1, 1), 2);
  expect_refusal([&] { data.count_targets(2, 1, 100); }, Code::kTokenOutOfRange, {"500"});
}

TEST(TokenSamples, RefuseAMaskOfAnotherLength) {
  const TempDir dir;
  const auto path = write(dir / "a", as<std::uint16_t>({1, 2, 3, 4}));
  const auto mask = write(dir / "mask", "12345");
  expect_refusal([&] { TokenSamples::open(path, {.sequence = 2, .vocab_size = 9, .label_mask = mask}); },
                 Code::kDataMalformed,
                 {"mask", "each of 4 tokens, got 5 bytes"});
  expect_refusal([&] { TokenSamples::open(path, {.sequence = 2, .vocab_size = 9, .label_mask = dir / "none"}); },
                 Code::kFileNotFound,
                 {"none"});
}

TEST(TokenSamples, ASeparatorEndsItsDocumentAndTheNextTokenIsNoTarget) {
  const TempDir dir;
  const auto path = write(dir / "a", as<std::uint16_t>({5, 6, 0, 7, 0, 0, 8, 9, 0, 3, 3, 3}));
  const TokenSamples data = TokenSamples::open(path, {.sequence = 6, .vocab_size = 10, .document_separator = 0});
  const Sample first = sample_of(data, 0, 6);
  EXPECT_THAT(first.documents, ElementsAre(0, 0, 0, 1, 1, 2));
  EXPECT_THAT(first.labels, ElementsAre(5, 6, 0, -100, 0, -100));
  const Sample second = sample_of(data, 1, 6); // counted anew; a separator before a sample does not matter
  EXPECT_THAT(second.documents, ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(second.labels, ElementsAre(8, 9, 0, -100, 3, 3));
  EXPECT_THAT(data.description(), HasSubstr("token 0 ends a document: 4 times"));
}

TEST(TokenSamples, TakeDocumentsFromMegatronsIndexWhereThatIsWanted) {
  const TempDir dir;
  const auto path = write_three_documents(dir);
  TokenSampleOptions options{.sequence = 4, .vocab_size = 100, .documents = true};
  const TokenSamples data = TokenSamples::open(path, options);
  EXPECT_THAT(sample_of(data, 0, 4).documents, ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(sample_of(data, 0, 4).labels, ElementsAre(10, 11, 12, -100));
  EXPECT_THAT(sample_of(data, 1, 4).documents, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(sample_of(data, 1, 4).labels, ElementsAre(14, 15, -100, 17));
  EXPECT_EQ(data.description(), "megatron uint16, 10 tokens, 2 samples, 3 documents kept apart");
  options.documents = false;
  EXPECT_THAT(TokenSamples::open(path, options).description(), HasSubstr("3 documents not kept apart (--documents)"));
}

TEST(TokenSamples, ADocumentThatBeginsWithASampleIsItsNumberZero) {
  const TempDir dir;
  const auto path = write_three_documents(dir);
  const TokenSamples data = TokenSamples::open(path, {.sequence = 3, .vocab_size = 100, .documents = true});
  EXPECT_THAT(sample_of(data, 1, 3).documents, ElementsAre(0, 0, 0));
  EXPECT_THAT(sample_of(data, 1, 3).labels, ElementsAre(13, 14, 15));
}

TEST(TokenSamples, RefuseDocumentsThatNobodySays) {
  const TempDir dir;
  const auto raw = write(dir / "a", as<std::uint16_t>({1, 2, 3, 4}));
  const auto refused =
      [&](const std::filesystem::path& path, const TokenSampleOptions& options, const std::string& why) {
        expect_refusal([&] { TokenSamples::open(path, options); }, Code::kBadFlag, {why});
      };
  refused(raw, {.sequence = 2, .vocab_size = 9, .documents = true}, "got a file that is raw");
  refused(raw, {.sequence = 2, .vocab_size = 9, .document_separator = 9}, "from 0 to 8, got 9");
  refused(raw, {.sequence = 2, .vocab_size = 9, .document_separator = -1}, "from 0 to 8, got -1");
  refused(write_three_documents(dir),
          {.sequence = 2, .vocab_size = 99, .documents = true, .document_separator = 1},
          "--documents or --document-separator, got both");
}

TEST(TokenSamples, RefuseAFileShorterThanOne) {
  const TempDir dir;
  const auto path = write(dir / "a", as<std::uint16_t>({1, 2, 3}));
  expect_refusal([&] { TokenSamples::open(path, {.sequence = 4, .vocab_size = 9}); },
                 Code::kDataTooShort,
                 {"sequence of 4", "got 3"});
}

} // namespace
} // namespace tieshard::testing
