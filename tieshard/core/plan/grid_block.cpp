#include "tieshard/core/plan/grid_block.h"

#include <algorithm>

#include "tieshard/core/checkpoint/scale_names.h"
#include "tieshard/core/plan/quantization.h"

namespace tieshard {
namespace {

constexpr std::int64_t kUsualBlock = 128; ///< transformers' FineGrainedFP8Config, and every published model
constexpr std::int64_t kAnySize = std::numeric_limits<std::int64_t>::max();

/// The sizes of which `blocks` are started in `size`. Pre: 1 <= blocks <= size
BlockRange range_of(std::int64_t size, std::int64_t blocks) {
  const auto rounded_up = [](std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); };
  return {.least = rounded_up(size, blocks), .most = blocks == 1 ? kAnySize : rounded_up(size, blocks - 1) - 1};
}

void narrow(BlockRange& range, const BlockRange& by) {
  range = {.least = std::max(range.least, by.least), .most = std::min(range.most, by.most)};
}

std::string where_of(const Checkpoint& checkpoint, const GridBlock& grids) {
  return concat(checkpoint.config().where(), ", quantization_config.weight_block_size; ", grids.scales->name);
}

std::string shapes_of(const GridBlock& grids) {
  return concat("scales ",
                to_string(grids.scales->shape),
                " of ",
                to_string(grids.values->shape),
                grids.grids == 1 ? std::string() : concat(", and ", grids.grids - 1, " more grids"));
}

std::string text_of(const BlockRange& range, std::string_view unit) {
  return range.most == kAnySize ? concat(range.least, " or more ", unit)
         : range.is_one()       ? concat(range.least, " ", unit)
                                : concat(range.least, " to ", range.most, " ", unit);
}

} // namespace

bool GridBlock::is_certain() const {
  return rows.is_one() && columns.is_one();
}

std::optional<ScaleBlock> GridBlock::block() const {
  if (is_certain()) {
    return ScaleBlock{rows.least, columns.least};
  }
  const bool usual = rows.contains(kUsualBlock) && columns.contains(kUsualBlock);
  return usual ? std::optional(ScaleBlock{kUsualBlock, kUsualBlock}) : std::nullopt;
}

bool is_scale_grid(const Shape& values, const Shape& scales) {
  const std::size_t rank = values.size();
  if (rank < 2 || scales.size() != rank || !std::equal(values.begin(), values.end() - 2, scales.begin())) {
    return false;
  }
  const auto fits = [](std::int64_t size, std::int64_t blocks) { return 1 <= blocks && blocks <= size; };
  return fits(values[rank - 2], scales[rank - 2]) && fits(values[rank - 1], scales[rank - 1]);
}

std::optional<GridBlock> grid_block(const Checkpoint& checkpoint) {
  GridBlock grids;
  for (const StoredTensor& values : checkpoint.tensors()) {
    const StoredTensor* const scales = is_float8(values.dtype) ? find_scale(checkpoint, values.name) : nullptr;
    if (scales == nullptr || scale_block(values.shape, scales->shape, std::nullopt) ||
        !is_scale_grid(values.shape, scales->shape)) {
      continue;
    }
    const std::size_t rank = values.shape.size();
    narrow(grids.rows, range_of(values.shape[rank - 2], scales->shape[rank - 2]));
    narrow(grids.columns, range_of(values.shape[rank - 1], scales->shape[rank - 1]));
    if (++grids.grids == 1) {
      grids.values = &values;
      grids.scales = scales;
    }
  }
  return grids.grids == 0 ? std::nullopt : std::optional(grids);
}

Diagnostic derived_block(const Checkpoint& checkpoint, const GridBlock& grids, const ScaleBlock& block) {
  return {.level = Level::kNote,
          .code = Code::kScaleBlock,
          .what = "the block of FP8 scales is derived from their shapes",
          .where = where_of(checkpoint, grids),
          .why = concat("config.json does not say it; ",
                        grids.is_certain() ? "no other block than " : "of several that fit, transformers' default of ",
                        block.rows,
                        " rows by ",
                        block.columns,
                        grids.is_certain() ? " columns fits " : " columns is taken for ",
                        shapes_of(grids)),
          .fix = concat("write weight_block_size: [", block.rows, ", ", block.columns, "] into quantization_config")};
}

Diagnostic block_not_known(const Checkpoint& checkpoint, const GridBlock& grids) {
  const bool none = grids.rows.least > grids.rows.most || grids.columns.least > grids.columns.most;
  return {.code = Code::kScaleBlock,
          .what = "the block of FP8 scales is not known",
          .where = where_of(checkpoint, grids),
          .why = concat("config.json does not say it, and ",
                        none ? concat("no one block fits ", shapes_of(grids))
                             : concat("blocks of ",
                                      text_of(grids.rows, "rows"),
                                      " by ",
                                      text_of(grids.columns, "columns"),
                                      " fit ",
                                      shapes_of(grids))),
          .fix =
              "write weight_block_size, as the weights were quantised, into quantization_config: "
              "with another block they would be wrong by a factor"};
}

} // namespace tieshard
