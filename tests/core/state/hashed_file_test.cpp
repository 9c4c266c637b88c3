#include "tieshard/core/state/hashed_file.h"

#include <gtest/gtest.h>

#include "tests/core/base/refusal.h"
#include "tests/core/base/temp_dir.h"

namespace tieshard {
namespace {

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((i * 2654435761U) >> 13);
  }
  return bytes;
}

TEST(HashedFile, HoldsWhatWasAppendedAndKnowsItsHash) {
  const TempDir directory;
  const std::vector<std::byte> bytes = some_bytes((20 << 20) + 12345); // several pieces and write-backs
  HashedFile file(directory / "f.bin", bytes.size());
  file.append(std::span(bytes).first(7));
  file.append({});
  file.append(std::span(bytes).subspan(7));
  const FileRecord record = file.finish();
  EXPECT_EQ(record.name, "f.bin");
  EXPECT_EQ(record.bytes, bytes.size());
  EXPECT_EQ(directory.read("f.bin"), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  EXPECT_EQ(record_of(directory.path(), "f.bin"), record);
}

TEST(HashedFile, HashesAsXxh128sumDoes) {
  const TempDir directory;
  const auto record = [&](const std::string& text) {
    HashedFile file(directory / "f", text.size());
    file.append(std::as_bytes(std::span(text)));
    return file.finish();
  };
  EXPECT_EQ(record("").xxh128, "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(record("a").xxh128, "a96faf705af16834e6c632b61e964e1f");
}

TEST(HashedFile, OfAnotherSizeThanAnnouncedIsNotFinished) {
  const TempDir directory;
  HashedFile file(directory / "f", 3);
  file.append(std::as_bytes(std::span("ab", 2)));
  expect_refusal<InternalError>(Code::kBug, {"f", "3", "2"}, [&] { file.finish(); });
}

TEST(RecordOf, AFileThatIsNotThereIsRefused) {
  const TempDir directory;
  expect_refusal<InputError>(Code::kFileNotFound, {"none"}, [&] { record_of(directory.path(), "none"); });
}

TEST(RecordOf, TellsAFlippedBit) {
  const TempDir directory;
  directory.write("one", std::string(3 << 20, 'x'));
  std::string other(3 << 20, 'x');
  other[(2 << 20) + 5] ^= 1;
  directory.write("other", other);
  EXPECT_NE(record_of(directory.path(), "one").xxh128, record_of(directory.path(), "other").xxh128);
}

} // namespace
} // namespace tieshard
