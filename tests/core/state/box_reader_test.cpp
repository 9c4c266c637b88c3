#include "tieshard/core/state/box_reader.h"

#include <gtest/gtest.h>

#include "tests/core/base/refusal.h"
#include "tests/core/state/sharded_fixture.h"

namespace tieshard {
namespace {

using testing::dcp_name;
using testing::FixtureBlock;
using testing::sharded_file;

std::vector<std::int16_t> read(const ShardedFiles& files,
                               const std::string& name,
                               const Box& box,
                               std::uint64_t buffer) {
  std::vector<std::int16_t> values(static_cast<std::size_t>(numel(box.shape)), -1);
  BoxReader(files, buffer).read(*files.find(name), box, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

/// Every box of a [6, 8] tensor, out of files that cut it in one way, through buffers of several sizes.
void expect_every_box(const TempDir& directory) {
  const ShardedFiles files = ShardedFiles::open(directory.path());
  for (const std::uint64_t buffer : {1, 2, 6, 16, 40, 4096}) {
    for (std::int64_t row = 0; row < 6; ++row) {
      for (std::int64_t column = 0; column < 8; ++column) {
        for (std::int64_t rows = 0; rows <= 6 - row; ++rows) {
          for (std::int64_t columns = 0; columns <= 8 - column; ++columns) {
            const Box box{.offsets = {row, column}, .shape = {rows, columns}};
            ASSERT_EQ(read(files, "w", box, buffer), testing::numbers_of({"w", {6, 8}, box.offsets, box.shape}))
                << to_string(box.offsets) << to_string(box.shape) << buffer;
          }
        }
      }
    }
  }
}

TEST(BoxReader, ReadsEveryBoxOutOfAGrid) {
  const TempDir directory;
  testing::write_grid(directory);
  expect_every_box(directory);
}

TEST(BoxReader, ReadsEveryBoxOutOfRowsAndColumnsAndTheWhole) {
  const TempDir rows;
  rows.write(dcp_name(0), sharded_file({{"w", {6, 8}, {0, 0}, {4, 8}}}));
  rows.write(dcp_name(1), sharded_file({{"w", {6, 8}, {4, 0}, {2, 8}}}));
  expect_every_box(rows);
  const TempDir columns;
  columns.write(dcp_name(0), sharded_file({{"w", {6, 8}, {0, 0}, {6, 3}}}));
  columns.write(dcp_name(1), sharded_file({{"w", {6, 8}, {0, 3}, {6, 5}}}));
  expect_every_box(columns);
  const TempDir whole;
  whole.write(dcp_name(0), sharded_file({{"w", {6, 8}, {0, 0}, {6, 8}}}));
  expect_every_box(whole);
}

TEST(BoxReader, ReadsLongRunsAndRowsFarApartInPlace) {
  const Shape shape{3, 20000}; // rows of 40,000 bytes; the right block begins far from the next row's
  const TempDir directory;
  directory.write(dcp_name(0), sharded_file({{"w", shape, {0, 0}, shape}}));
  const ShardedFiles files = ShardedFiles::open(directory.path());
  for (const Box& box :
       {Box{{0, 0}, {3, 20000}}, Box{{1, 0}, {2, 20000}}, Box{{0, 17}, {3, 5}}, Box{{0, 1}, {3, 19000}}}) {
    EXPECT_EQ(read(files, "w", box, 64), testing::numbers_of({"w", shape, box.offsets, box.shape}));
  }
}

TEST(BoxReader, ReadsTheOneElementOfAZeroDimTensor) {
  const TempDir directory;
  directory.write(dcp_name(0), sharded_file({{"step", {}, {}, {}, 42}}));
  const ShardedFiles files = ShardedFiles::open(directory.path());
  EXPECT_EQ(read(files, "step", {}, 4096), std::vector<std::int16_t>{42});
}

TEST(BoxReader, RefusesABoxOutsideTheTensor) {
  const TempDir directory;
  testing::write_grid(directory);
  const ShardedFiles files = ShardedFiles::open(directory.path());
  for (const Box& box : {Box{{0, 0}, {7, 8}}, Box{{0, 0}, {6}}, Box{{-1, 0}, {2, 2}}, Box{{6, 8}, {1, 0}}}) {
    expect_refusal<UsageError>(Code::kBadSlice, {"w"}, [&] { BoxReader(files).read(*files.find("w"), box, nullptr); });
  }
}

} // namespace
} // namespace tieshard
