#include "tieshard/core/state/box.h"

#include <cstring>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/state/box_walk.h"

namespace tieshard {
namespace {

using testing::ElementsAre;

TEST(BoxIntersection, IsWhatBothHaveAndNothingWhereTheyOnlyTouch) {
  const Box left{.offsets = {0, 0}, .shape = {4, 3}};
  const Box right{.offsets = {2, 1}, .shape = {5, 9}};
  EXPECT_EQ(intersection(left, right), (Box{.offsets = {2, 1}, .shape = {2, 2}}));
  EXPECT_EQ(intersection(left, {.offsets = {0, 3}, .shape = {4, 1}}), std::nullopt);
  EXPECT_EQ(intersection(left, {.offsets = {1, 1}, .shape = {0, 1}}), std::nullopt);
}

TEST(BoxIntersection, OfZeroDimTensorsIsTheOneElement) {
  EXPECT_EQ(intersection(Box{}, Box{}), Box{});
}

/// The elements of a box of a tensor whose element [i, j, k] is i * 100 + j * 10 + k.
std::vector<std::int16_t> elements_of(const Box& box) {
  std::vector<std::int16_t> values;
  for (std::int64_t i = 0; i < box.shape[0]; ++i) {
    for (std::int64_t j = 0; j < box.shape[1]; ++j) {
      for (std::int64_t k = 0; k < box.shape[2]; ++k) {
        values.push_back(
            static_cast<std::int16_t>((box.offsets[0] + i) * 100 + (box.offsets[1] + j) * 10 + box.offsets[2] + k));
      }
    }
  }
  return values;
}

TEST(CopyBox, PutsEachElementInItsPlaceWhateverTheShapes) {
  const std::vector<Box> boxes = {{{0, 0, 0}, {4, 3, 5}},
                                  {{1, 0, 0}, {2, 3, 5}},
                                  {{0, 1, 0}, {4, 1, 5}},
                                  {{0, 0, 2}, {4, 3, 2}},
                                  {{1, 1, 1}, {3, 2, 4}},
                                  {{2, 2, 3}, {1, 1, 1}}};
  for (const Box& from : boxes) {
    for (const Box& into : boxes) {
      const std::optional<Box> part = intersection(from, into);
      if (!part) {
        continue;
      }
      const std::vector<std::int16_t> source = elements_of(from);
      std::vector<std::int16_t> target(static_cast<std::size_t>(numel(into.shape)), -1);
      copy_box(*part,
               from,
               reinterpret_cast<const std::byte*>(source.data()),
               into,
               reinterpret_cast<std::byte*>(target.data()),
               2);
      const std::vector<std::int16_t> all = elements_of(into);
      const std::vector<std::int16_t> copied = elements_of(*part);
      const std::set<std::int16_t> wanted(copied.begin(), copied.end());
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(target[i], wanted.contains(all[i]) ? all[i] : -1);
      }
    }
  }
}

TEST(CopyBox, CopiesTheOneElementOfAZeroDimTensor) {
  const std::int32_t source = 7;
  std::int32_t target = 0;
  copy_box({}, {}, reinterpret_cast<const std::byte*>(&source), {}, reinterpret_cast<std::byte*>(&target), 4);
  EXPECT_EQ(target, 7);
}

TEST(BoxRuns, JoinWhatLiesTogetherInBoth) {
  const Box whole{.offsets = {0, 0}, .shape = {6, 8}};
  const Box rows{.offsets = {2, 0}, .shape = {3, 8}};
  const BoxRuns joined = runs_of(rows, whole, rows, 4);
  EXPECT_EQ(joined.bytes, 3 * 8 * 4U);
  EXPECT_EQ(joined.from_first, 2 * 8 * 4U);
  const Box columns{.offsets = {0, 2}, .shape = {6, 3}};
  const BoxRuns strided = runs_of(columns, whole, columns, 4);
  EXPECT_EQ(strided.bytes, 12U);
  EXPECT_THAT(strided.counts, ElementsAre(6));
}

std::vector<Box> slabs_of(const Box& container, const Box& part, std::uint64_t most) {
  std::vector<Box> slabs;
  for_each_slab(container, part, most, [&slabs](const Box& slab) { slabs.push_back(slab); });
  return slabs;
}

TEST(BoxSlabs, AreRowsWhereRowsFitAndPartsOfRowsElsewhere) {
  const Box whole{.offsets = {0, 0}, .shape = {5, 4}};
  EXPECT_THAT(slabs_of(whole, whole, 100), ElementsAre(whole));
  EXPECT_THAT(slabs_of(whole, whole, 9), ElementsAre(Box{{0, 0}, {2, 4}}, Box{{2, 0}, {2, 4}}, Box{{4, 0}, {1, 4}}));
  EXPECT_THAT(slabs_of(whole, {{3, 0}, {2, 4}}, 3),
              ElementsAre(Box{{3, 0}, {1, 3}}, Box{{3, 3}, {1, 1}}, Box{{4, 0}, {1, 3}}, Box{{4, 3}, {1, 1}}));
  EXPECT_THAT(slabs_of({}, {}, 1), ElementsAre(Box{}));
}

TEST(BoxSlabs, KeepTheOrderOfElementsAndTheBound) {
  const Box whole{.offsets = {0, 0, 0}, .shape = {4, 3, 5}};
  for (std::uint64_t most = 1; most < 70; ++most) {
    std::vector<std::int16_t> met;
    for (const Box& slab : slabs_of(whole, whole, most)) {
      EXPECT_LE(numel(slab.shape), static_cast<std::int64_t>(most));
      for (const std::int16_t element : elements_of(slab)) {
        met.push_back(element);
      }
    }
    EXPECT_EQ(met, elements_of(whole)) << most;
  }
}

} // namespace
} // namespace tieshard
