#include "tieshard/runtime/state/export_windows.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/tiny_llama.h"

namespace tieshard::testing {
namespace {

struct Planned {
  ShardPlan plan;
  ExportFile file;
};

Planned planned(std::int64_t ranks, ShardDimPolicy policy = ShardDimPolicy::kLast) {
  const Checkpoint source = Checkpoint::open(write_tiny_llama("model", {}));
  const ParameterTable table = require_family(source.config()).table(source.config());
  ShardPlan plan = ShardPlan::build(table, TieRegistry::of(source, table), ranks, {.policy = policy});
  std::vector<ExportFile> files = layout_export(plan, source, std::uint64_t{1} << 40);
  return {std::move(plan), std::move(files.front())};
}

/// Each byte of the data is written once: [begin, end) of windows and of what goes by slices, sorted.
void expect_all_bytes_once(const Planned& planned, const ExportWindows& windows) {
  std::map<std::uint64_t, std::uint64_t> extents;
  for (const ExportWindow& window : windows.windows) {
    EXPECT_TRUE(extents.emplace(window.offset, window.offset + window.bytes).second);
  }
  for (const TensorEntry* const tensor : windows.by_slices) {
    const std::uint64_t begin = planned.file.layout.offset_of(tensor->name);
    EXPECT_TRUE(extents.emplace(begin, begin + tensor->end - tensor->begin).second);
  }
  std::uint64_t at = planned.file.layout.header.data_start;
  for (const auto& [begin, end] : extents) {
    EXPECT_EQ(begin, at);
    at = end;
  }
  EXPECT_EQ(at, planned.file.layout.file_bytes);
}

TEST(ExportWindows, HoldEachByteOnceInWholeRowsUpToTheirSize) {
  for (const std::int64_t ranks : {2, 3, 5, 40}) {
    const Planned model = planned(ranks);
    for (const std::uint64_t most : {std::uint64_t{80}, std::uint64_t{100}, std::uint64_t{1000}, kWindowBytes}) {
      const ExportWindows windows = export_windows(model.file, model.plan, most);
      ASSERT_FALSE(windows.windows.empty());
      expect_all_bytes_once(model, windows);
      for (const ExportWindow& window : windows.windows) {
        EXPECT_LE(window.bytes, most);
        std::uint64_t at = 0;
        std::uint64_t held = 0;
        for (const WindowPiece& piece : window.pieces) {
          EXPECT_EQ(piece.at, at);
          at += piece.rows * piece.cut.row_bytes;
        }
        EXPECT_EQ(at, window.bytes);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          held += bytes_held(window, model.plan, rank);
          EXPECT_LE(bytes_held(window, model.plan, rank), bytes_held(window, model.plan, 0));
        }
        EXPECT_EQ(held, window.bytes);
      }
    }
  }
}

TEST(ExportWindows, AreSharedOutInNeighbouringOnes) {
  const Planned model = planned(3);
  const ExportWindows windows = export_windows(model.file, model.plan, 500);
  std::vector<const ExportWindow*> in_order;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    for (std::size_t step = 0; step < windows.of_rank(); ++step) {
      if (const ExportWindow* const window = windows.window(rank, step)) {
        in_order.push_back(window);
      }
    }
  }
  ASSERT_EQ(in_order.size(), windows.windows.size());
  for (std::size_t i = 0; i < in_order.size(); ++i) {
    EXPECT_EQ(in_order[i], &windows.windows[i]);
  }
  EXPECT_LE(windows.of_rank() * 3, in_order.size() + 2);
}

TEST(ExportWindows, AreNotNeededForWhatLiesInOnePieceOnItsRank) {
  const Planned whole = planned(1);
  EXPECT_TRUE(export_windows(whole.file, whole.plan).windows.empty());
  const Planned first = planned(2, ShardDimPolicy::kFirst);
  const ExportWindows windows = export_windows(first.file, first.plan);
  for (const ExportWindow& window : windows.windows) { // the tied table lies on its last dim
    for (const WindowPiece& piece : window.pieces) {
      EXPECT_EQ(piece.parameter->fqn, "model.embed_tokens.weight");
    }
  }
  expect_all_bytes_once(first, windows);
}

TEST(ExportWindows, LeaveTensorsWithLongRowsToTheirRanks) {
  const Planned model = planned(2);
  const ExportWindows windows = export_windows(model.file, model.plan, 50); // rows have 48 and 80 bytes
  EXPECT_FALSE(windows.windows.empty());
  EXPECT_TRUE(std::ranges::any_of(windows.by_slices, [](const TensorEntry* tensor) {
    return tensor->name == "model.layers.0.mlp.down_proj.weight";
  }));
  expect_all_bytes_once(model, windows);
}

} // namespace
} // namespace tieshard::testing
