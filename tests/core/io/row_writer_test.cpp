#include "tieshard/core/io/row_writer.h"

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"

namespace tieshard {
namespace {

namespace fs = std::filesystem;
using testing::CheckpointFixture;

constexpr std::uint64_t kBegin = 777; ///< on no page's boundary

char letter(std::uint64_t part, std::uint64_t index) {
  return static_cast<char>('a' + (index + part * 5) % 26);
}

/// Writes the piece `part` of each row.
void write_part(const fs::path& path, std::uint64_t part, const StridedRange& range) {
  std::vector<std::byte> data(range.bytes());
  for (std::uint64_t index = 0; index < data.size(); ++index) {
    data[index] = static_cast<std::byte>(letter(part, index));
  }
  const File file = File::open_for_writing(path);
  write_rows(file, kBegin + part * range.row_bytes, range, data.data());
  file.sync();
}

class RowsOfSeveralWriters : public ::testing::TestWithParam<bool> {};

TEST_P(RowsOfSeveralWriters, LieWhereTheyBelongWhetherTheFileIsReservedOrSparse) {
  const bool reserved = GetParam();
  struct Case {
    std::uint64_t parts, rows, piece;
  };
  for (const Case& c : {Case{2, 9000, 1152}, Case{3, 70'000, 50}, Case{2, 5, 63 << 10}, Case{2, 3, 70 << 10}}) {
    const CheckpointFixture fixture;
    const fs::path path = fixture.path() / "rows";
    const std::uint64_t bytes = kBegin + c.rows * c.piece * c.parts;
    {
      const File file = File::create(path, reserved ? bytes : 0);
      fs::resize_file(path, bytes);
      EXPECT_EQ(takes_mapped_writes(file, bytes), reserved);
      EXPECT_FALSE(takes_mapped_writes(file, bytes + 1)); // a page beyond the end would be a signal
    }
    std::vector<std::thread> writers;
    for (std::uint64_t part = 0; part < c.parts; ++part) {
      writers.emplace_back(write_part,
                           path,
                           part,
                           StridedRange{.first = 0, .rows = c.rows, .row_bytes = c.piece, .stride = c.piece * c.parts});
    }
    for (std::thread& writer : writers) {
      writer.join();
    }
    std::string expected(kBegin, '\0');
    for (std::uint64_t row = 0; row < c.rows; ++row) {
      for (std::uint64_t part = 0; part < c.parts; ++part) {
        for (std::uint64_t at = 0; at < c.piece; ++at) {
          expected += letter(part, row * c.piece + at);
        }
      }
    }
    EXPECT_TRUE(read_text_file(path) == expected) << c.parts << " parts of " << c.piece << " bytes";
  }
}

INSTANTIATE_TEST_SUITE_P(Files, RowsOfSeveralWriters, ::testing::Bool(), [](const auto& info) {
  return info.param ? "reserved" : "sparse";
});

} // namespace
} // namespace tieshard
