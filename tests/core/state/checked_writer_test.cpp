#include "tieshard/core/state/checked_writer.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kBatch = CheckedWriter::kBatchBytes;

std::string some_text(std::uint64_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>('a' + (i * 2654435761U >> 13) % 26);
  }
  return text;
}

std::span<const std::byte> part(const std::string& text, std::uint64_t begin, std::uint64_t end) {
  return std::as_bytes(std::span(text)).subspan(begin, end - begin);
}

TEST(CheckedWriter, PutsBytesInAnyOrderWhereTheyBelong) {
  const TempDir directory;
  const std::string text = some_text(9 * kBatch + 1234);
  File::create(directory / "f", text.size());
  CheckedWriter writer(directory / "f");
  for (std::uint64_t begin = kBatch; begin < text.size(); begin += kBatch / 3) { // batches of several extents
    writer.write(begin, part(text, begin, std::min<std::uint64_t>(begin + kBatch / 3, text.size())));
  }
  writer.write(0, part(text, 0, kBatch));
  writer.finish();
  EXPECT_EQ(directory.read("f"), text);
}

TEST(CheckedWriter, OfNothingLeavesTheFileAsItIs) {
  const TempDir directory;
  directory.write("f", "as it is");
  CheckedWriter(directory / "f").finish();
  EXPECT_EQ(directory.read("f"), "as it is");
}

TEST(CheckedWriter, TellsThatWhatWasWrittenIsNotThereAnyMore) {
  const TempDir directory;
  const std::string text = some_text(3 * kBatch);
  for (const std::uint64_t damaged : {std::uint64_t{5}, kBatch + 7, 3 * kBatch - 1}) {
    File::create(directory / "f", text.size());
    CheckedWriter writer(directory / "f");
    for (std::uint64_t begin = 0; begin < text.size(); begin += kBatch) {
      writer.write(begin, part(text, begin, begin + kBatch));
    }
    File::open_for_writing(directory / "f").write_at(damaged, part("#", 0, 1));
    const std::string from = concat("from byte ", damaged / kBatch * kBatch, " on");
    expect_refusal<PeerError>(Code::kExportMismatch, {"f", from, "hash"}, [&] { writer.finish(); });
  }
}

TEST(CheckedWriter, TellsItBeforeAllIsWritten) {
  const TempDir directory;
  const std::string text = some_text(kBatch);
  File::create(directory / "f", 20 * kBatch);
  CheckedWriter writer(directory / "f");
  writer.write(0, std::as_bytes(std::span(text)));
  File::open_for_writing(directory / "f").write_at(1, part("#", 0, 1));
  expect_refusal<PeerError>(Code::kExportMismatch, {"from byte 0 on"}, [&] {
    for (std::uint64_t batch = 1; batch < 20; ++batch) {
      writer.write(batch * kBatch, std::as_bytes(std::span(text)));
    }
  });
}

} // namespace
} // namespace tieshard
