#include "tieshard/core/data/megatron_index.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/data/token_files.h"
#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MegatronIndex parse(const std::string& bytes, std::uint64_t data_bytes = 20, bool keep = true) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    ASSERT_LE(offset + out.size(), bytes.size());
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  return parse_megatron_index(read, bytes.size(), data_bytes, keep, "text.idx");
}

TEST(MegatronIndex, SaysTypeTokensAndWhereDocumentsBegin) {
  const MegatronIndex index = parse(three_documents().bytes());
  EXPECT_EQ(index.layout, (TokenLayout{TokenFormat::kMegatron, TokenType::kUint16, 0, 10}));
  EXPECT_EQ(index.documents, 3);
  EXPECT_THAT(index.document_starts, ElementsAre(0, 3, 6));
  EXPECT_THAT(parse(three_documents().bytes(), 20, false).document_starts, IsEmpty());
}

TEST(MegatronIndex, DoesNotCountDocumentsWithoutTokens) {
  const Index index{.lengths = {3, 0, 7}, .pointers = {0, 6, 6}, .documents = {0, 0, 1, 2, 3, 3}};
  EXPECT_EQ(parse(index.bytes()).documents, 2);
  EXPECT_THAT(parse(index.bytes()).document_starts, ElementsAre(0, 3));
}

TEST(MegatronIndex, OfManySequencesIsReadInPieces) {
  Index index;
  for (std::int64_t sequence = 0; sequence < 40'000; ++sequence) {
    index.lengths.push_back(2);
    index.pointers.push_back(4 * sequence);
    index.documents.push_back(sequence);
  }
  index.documents.push_back(40'000);
  const MegatronIndex parsed = parse(index.bytes(), 160'000);
  EXPECT_EQ(parsed.layout.tokens, 80'000);
  ASSERT_EQ(parsed.documents, 40'000);
  EXPECT_EQ(parsed.document_starts[39'999], 79'998);
}

TEST(MegatronIndex, ThatContradictsItselfOrTheDataIsRefused) {
  const auto refused = [](const Index& index, const std::string& why, std::uint64_t data_bytes = 20) {
    expect_refusal([&] { parse(index.bytes(), data_bytes); }, Code::kDataMalformed, {"text.idx", why});
  };
  const auto changed = [](auto change) {
    Index index = three_documents();
    change(index);
    return index;
  };
  refused(changed([](Index& index) { index.magic = "MMIDIDY  "; }), "expected MMIDIDX");
  refused(changed([](Index& index) { index.version = 2; }), "expected version 1, got 2");
  refused(changed([](Index& index) { index.code = 7; }), "code of an integer (1 to 5, or 8), got 7");
  refused(changed([](Index& index) { index.code = 6; }), "got 6");
  refused(changed([](Index& index) { index.code = 0; }), "got 0");
  refused(changed([](Index& index) { index.lengths[2] = -1; }), "sequence 2");
  refused(changed([](Index& index) { index.lengths[0] = 2; }), "sequence 1: expected it at byte 4");
  refused(changed([](Index& index) { index.lengths[3] = 2'000'000'000; }), "sequence 3");
  refused(changed([](Index& index) { index.pointers[3] = 14; }), "sequence 3: expected it at byte 12");
  refused(changed([](Index& index) { index.code = 4; }), "sequence 1: expected it at byte 12");
  refused(changed([](Index& index) { index.documents = {}; }), "a first document that begins at sequence 0");
  refused(changed([](Index& index) { index.documents[0] = 1; }), "a first document that begins at sequence 0");
  refused(changed([](Index& index) { index.documents[3] = 3; }), "to the 4 sequences, got 3");
  refused(changed([](Index& index) { index.documents[2] = 0; }), "to the 4 sequences, got 0");
  refused(changed([](Index& index) { index.documents[3] = 5; }), "to the 4 sequences, got 5");
  refused(three_documents(), "expected a .bin of 20 bytes, got 24", 24);
  refused(three_documents(), "sequence 3", 18);
}

TEST(MegatronIndex, OfAnotherSizeThanItsCountsIsRefused) {
  const std::string bytes = three_documents().bytes();
  for (const std::string& wrong :
       {bytes + "1234", bytes.substr(0, bytes.size() - 8), bytes.substr(0, 33), std::string()}) {
    expect_refusal([&] { parse(wrong); }, Code::kDataMalformed, {"text.idx"});
  }
  std::string huge = bytes;
  std::memset(huge.data() + 18, 0xFF, 16); // both counts, as large as they go
  expect_refusal([&] { parse(huge); }, Code::kDataMalformed, {"18446744073709551615 sequences"});
}

} // namespace
} // namespace tieshard::testing
