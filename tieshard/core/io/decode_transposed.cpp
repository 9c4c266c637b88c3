#include "tieshard/core/io/decode_transposed.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tieshard/core/io/convert.h"
#include "tieshard/core/io/stored_window.h"

namespace tieshard {
namespace {

constexpr std::int64_t kRun = 64;  ///< elements of a target row that are gathered together
constexpr std::int64_t kRows = 16; ///< target rows of a tile: their gaps in the source share cache lines

struct Tile {
  const std::byte* source = nullptr; ///< stored row `0` of the tile, at its first column
  std::uint64_t pitch = 0;           ///< bytes from one stored row to the next
  std::int64_t run = 0;              ///< stored rows, at most kRun
  std::int64_t rows = 0;             ///< stored columns, at most kRows
};

/// Gathers the tile's stored columns into rows of kRun elements.
template <typename Element>
void gather(const Tile& tile, std::byte* turned) {
  std::array<Element, kRows * kRun> out;
  for (std::int64_t at = 0; at < tile.run; ++at) {
    std::array<Element, kRows> in;
    std::memcpy(in.data(),
                tile.source + static_cast<std::uint64_t>(at) * tile.pitch,
                static_cast<std::size_t>(tile.rows) * sizeof(Element));
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      out[static_cast<std::size_t>(row * kRun + at)] = in[static_cast<std::size_t>(row)];
    }
  }
  std::memcpy(turned, out.data(), static_cast<std::size_t>(tile.rows * kRun) * sizeof(Element));
}

void gather(const Tile& tile, std::size_t item, std::byte* turned) {
  switch (item) {
    case 1:
      return gather<std::uint8_t>(tile, turned);
    case 2:
      return gather<std::uint16_t>(tile, turned);
    case 4:
      return gather<std::uint32_t>(tile, turned);
    default:
      return gather<std::uint64_t>(tile, turned);
  }
}

} // namespace

std::uint64_t decode_transposed(const Checkpoint& checkpoint,
                                const SliceRead& read,
                                const DecodePiece& piece,
                                std::byte* target,
                                DType target_dtype,
                                std::vector<std::byte>& buffer) {
  const SliceMatrices slice(read);
  const std::size_t item = static_cast<std::size_t>(bits(read.stored_dtype)) / 8;
  const std::size_t out_item = static_cast<std::size_t>(bits(target_dtype)) / 8;
  const std::int64_t first_row = slice.whole_lead(piece.lead) * slice.whole_columns + piece.row;
  const FileRows stored{
      .first = read.offset + static_cast<std::uint64_t>(first_row * slice.whole_rows + piece.column) * item,
      .rows = static_cast<std::uint64_t>(piece.rows),
      .row_bytes = static_cast<std::uint64_t>(piece.columns) * item,
      .stride = static_cast<std::uint64_t>(slice.whole_rows) * item};
  std::byte* const window = grown(buffer, stored.buffer_bytes(piece.read_gaps));
  const std::uint64_t asked = stored.read(checkpoint.files()[read.file].file(), piece.read_gaps, window);
  const std::uint64_t pitch = stored.pitch(piece.read_gaps);
  std::array<std::byte, kRows * kRun * 8> turned;
  for (std::int64_t row = 0; row < piece.columns; row += kRows) {
    for (std::int64_t column = 0; column < piece.rows; column += kRun) {
      const Tile tile{
          .source = window + static_cast<std::uint64_t>(column) * pitch + static_cast<std::uint64_t>(row) * item,
          .pitch = pitch,
          .run = std::min(kRun, piece.rows - column),
          .rows = std::min(kRows, piece.columns - row)};
      gather(tile, item, turned.data());
      for (std::int64_t at = 0; at < tile.rows; ++at) {
        const std::uint64_t index = slice.local_index(piece.lead, piece.column + row + at, piece.row + column);
        convert(turned.data() + static_cast<std::size_t>(at * kRun) * item,
                read.stored_dtype,
                target + index * out_item,
                target_dtype,
                static_cast<std::size_t>(tile.run));
      }
    }
  }
  return asked;
}

} // namespace tieshard
