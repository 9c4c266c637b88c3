#include "tieshard/core/state/block_collector.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tieshard/core/base/units.h"
#include "tieshard/core/state/block_coverage.h"

namespace tieshard {
namespace {

constexpr const char* kSaveAgain = "write the files again, all of them by one save";

[[noreturn]] void fail_place(const TensorEntry& entry, const std::string& file, std::string why) {
  throw InputError({.code = Code::kBadEntry,
                    .what = "DCP_SHARDING_INFO of a file is not as it has to be",
                    .where = concat(file, ", ", kShardingInfoKey, ", ", format_name(entry.name)),
                    .why = std::move(why),
                    .fix = "write the file again with the tool that made it"});
}

BlockPlace checked_place(const TensorEntry& entry,
                         std::unordered_map<std::string, BlockPlace>& places,
                         const std::string& file) {
  const auto found = places.find(entry.name);
  if (found == places.end()) {
    fail_place(entry, file, "expected an entry for every tensor of the file, got none");
  }
  BlockPlace place = std::move(found->second);
  const std::size_t rank = entry.shape.size();
  if (place.offsets.size() != rank) {
    fail_place(entry,
               file,
               concat("expected ", rank, " offsets for ", to_string(entry.shape), ", got ", to_string(place.offsets)));
  }
  if (place.whole && place.whole->size() != rank) {
    fail_place(entry, file, concat("expected a shape of ", rank, " dimensions, got ", to_string(*place.whole)));
  }
  for (std::size_t d = 0; place.whole && d < rank; ++d) {
    if (place.offsets[d] + entry.shape[d] > (*place.whole)[d]) {
      fail_place(entry,
                 file,
                 concat("expected a block in ",
                        to_string(*place.whole),
                        ", got ",
                        to_string(entry.shape),
                        " from ",
                        to_string(place.offsets)));
    }
  }
  return place;
}

/// The dimension that the blocks are cut on; -1: none or several.
int cut_of(const ShardedTensor& tensor) {
  std::set<std::size_t> dims;
  for (const StoredBlock& block : tensor.blocks) {
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      if (block.box.shape[d] != tensor.shape[d]) {
        dims.insert(d);
      }
    }
  }
  return dims.size() == 1 ? static_cast<int>(*dims.begin()) : -1;
}

} // namespace

void BlockCollector::add(const SafetensorsFile& file) {
  names_.push_back(file.file().path().filename().string());
  const SafetensorsHeader& header = file.header();
  const auto info = header.metadata.find(kShardingInfoKey);
  const bool has_places = info != header.metadata.end();
  std::unordered_map<std::string, BlockPlace> places;
  if (has_places) {
    places = parse_sharding_info(info->second, names_.back());
  }
  for (const TensorEntry& entry : header.tensors) {
    BlockPlace place = has_places ? checked_place(entry, places, names_.back())
                                  : BlockPlace{.offsets = Shape(entry.shape.size(), 0), .whole = {}};
    add_block(entry, std::move(place), header.data_start + entry.begin);
  }
}

std::vector<ShardedTensor> BlockCollector::finish() {
  std::vector<ShardedTensor> tensors;
  tensors.reserve(growing_.size());
  for (Growing& growing : growing_) {
    tensors.push_back(complete(std::move(growing)));
  }
  std::ranges::sort(tensors, {}, &ShardedTensor::name);
  return tensors;
}

void BlockCollector::add_block(const TensorEntry& entry, BlockPlace place, std::uint64_t offset) {
  const std::size_t file = names_.size() - 1;
  const auto [found, fresh] = numbers_.try_emplace(entry.name, growing_.size());
  if (fresh) {
    growing_.push_back(
        {.tensor = {.name = entry.name, .dtype = entry.dtype, .shape = Shape(entry.shape.size(), 0), .blocks = {}},
         .first = file});
  }
  Growing& growing = growing_[found->second];
  require_alike(growing, entry, place);
  Shape& whole = growing.tensor.shape;
  if (place.whole && !growing.stated) {
    require_inside(growing, *place.whole, whole);
    growing.stated = true;
    whole = *place.whole;
  }
  Shape end = place.offsets;
  for (std::size_t d = 0; d < end.size(); ++d) {
    end[d] += entry.shape[d];
  }
  if (growing.stated) {
    require_inside(growing, whole, end);
  }
  for (std::size_t d = 0; d < end.size(); ++d) {
    whole[d] = std::max(whole[d], end[d]);
  }
  growing.tensor.blocks.push_back(
      {.file = file, .offset = offset, .box = {.offsets = std::move(place.offsets), .shape = entry.shape}});
}

void BlockCollector::require_alike(const Growing& growing, const TensorEntry& entry, const BlockPlace& place) const {
  const ShardedTensor& tensor = growing.tensor;
  if (entry.dtype != tensor.dtype) {
    contradict(growing, Code::kTieDtypeDiffers, std::string(name(tensor.dtype)), std::string(name(entry.dtype)));
  }
  if (entry.shape.size() != tensor.shape.size()) {
    contradict(growing,
               Code::kShapeMismatch,
               concat(tensor.shape.size(), " dimensions"),
               concat(entry.shape.size(), " dimensions"));
  }
  if (place.whole && growing.stated && *place.whole != tensor.shape) {
    contradict(growing, Code::kShapeMismatch, to_string(tensor.shape), to_string(*place.whole));
  }
}

void BlockCollector::require_inside(const Growing& growing, const Shape& whole, const Shape& end) const {
  for (std::size_t d = 0; d < end.size(); ++d) {
    if (end[d] > whole[d]) {
      contradict(growing, Code::kShapeMismatch, to_string(whole), concat("blocks that reach to ", to_string(end)));
    }
  }
}

void BlockCollector::contradict(const Growing& growing,
                                Code code,
                                const std::string& one,
                                const std::string& other) const {
  throw InputError(
      {.code = code,
       .what = "blocks of one tensor contradict each other",
       .where = concat(where_, ", ", format_name(growing.tensor.name)),
       .why = concat("expected ", one, " as in ", names_[growing.first], ", got ", other, " in ", names_.back()),
       .fix = kSaveAgain});
}

ShardedTensor BlockCollector::complete(Growing growing) const {
  ShardedTensor tensor = std::move(growing.tensor);
  const auto where = [&] { return concat(where_, ", ", format_name(tensor.name)); };
  if (!checked_bytes(tensor.shape, tensor.dtype)) {
    throw InputError(
        {.code = Code::kSizeOverflow,
         .what = "the size of a tensor does not fit in 63 bits",
         .where = where(),
         .why = concat("expected fewer than 2^63 bytes, got ", name(tensor.dtype), " ", to_string(tensor.shape)),
         .fix = kSaveAgain});
  }
  tensor.cut = cut_of(tensor);
  tensor.stated = growing.stated;
  std::erase_if(tensor.blocks, [](const StoredBlock& block) { return numel(block.box.shape) == 0; });
  require_covered(tensor, where_, [this](std::size_t file) { return names_[file]; });
  if (bits(tensor.dtype) % 8 != 0 && tensor.blocks.size() > 1) {
    throw InputError({.code = Code::kBadEntry,
                      .what = "a tensor of packed elements is cut into blocks",
                      .where = where(),
                      .why = concat("expected one block of ", name(tensor.dtype), ", got ", tensor.blocks.size()),
                      .fix = kSaveAgain});
  }
  return tensor;
}

} // namespace tieshard
