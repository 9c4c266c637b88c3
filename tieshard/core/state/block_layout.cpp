#include "tieshard/core/state/block_layout.h"

#include <iomanip>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "tieshard/core/base/error.h"
#include "tieshard/core/state/sharding_info.h"

namespace tieshard {
namespace {

using Json = nlohmann::json;

std::string five_digits(std::int64_t number) {
  std::ostringstream text;
  text << std::setw(5) << std::setfill('0') << number;
  return text.str();
}

std::string sharding_info(const std::vector<TensorBlock>& blocks) {
  Json info = Json::object();
  for (const TensorBlock& block : blocks) {
    Json& place = info[block.name];
    place[kSavedOffsets] = block.box.offsets;
    if (block.states_whole) {
      place[kWholeShape] = block.whole;
    }
  }
  // A name that is not UTF-8 is refused with the tensors, a line further on.
  return info.dump(-1, ' ', false, Json::error_handler_t::replace);
}

} // namespace

TensorBlock block_of(const std::string& name, DType dtype, const Shape& whole, int dim, ChunkRange chunk) {
  TensorBlock block{.name = name, .dtype = dtype, .whole = whole, .box = {Shape(whole.size(), 0), whole}};
  if (dim >= 0) {
    block.box.offsets.at(static_cast<std::size_t>(dim)) = chunk.offset;
    block.box.shape.at(static_cast<std::size_t>(dim)) = chunk.size;
  }
  return block;
}

std::string shard_file_name(std::int64_t rank, int part, int parts) {
  return concat(
      "shard-", five_digits(rank + 1), "-model-", five_digits(part + 1), "-of-", five_digits(parts), ".safetensors");
}

SafetensorsLayout layout_shard_file(const std::vector<TensorBlock>& blocks, const std::string& id) {
  std::vector<TensorSpec> specs;
  specs.reserve(blocks.size());
  for (const TensorBlock& block : blocks) {
    specs.push_back({.name = block.name, .dtype = block.dtype, .shape = block.box.shape});
  }
  std::map<std::string, std::string> metadata{
      {kShardingInfoKey, sharding_info(blocks)}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
  if (!id.empty()) {
    metadata[kSaveIdKey] = id;
  }
  return layout_safetensors(std::move(specs), metadata);
}

} // namespace tieshard
