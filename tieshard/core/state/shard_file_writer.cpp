#include "tieshard/core/state/shard_file_writer.h"

#include <map>
#include <string_view>

namespace tieshard {
namespace {

SafetensorsLayout layout_of(const std::vector<BlockInMemory>& blocks, const std::string& id) {
  std::vector<TensorBlock> layout;
  layout.reserve(blocks.size());
  for (const BlockInMemory& block : blocks) {
    layout.push_back(block.block);
  }
  return layout_shard_file(layout, id);
}

} // namespace

std::uint64_t shard_file_bytes(const std::vector<BlockInMemory>& blocks, const std::string& id) {
  return layout_of(blocks, id).file_bytes;
}

FileRecord write_shard_file(const std::filesystem::path& directory,
                            const std::string& name,
                            const std::vector<BlockInMemory>& blocks,
                            const std::string& id) {
  const SafetensorsLayout layout = layout_of(blocks, id);
  std::map<std::string_view, const std::byte*> data;
  for (const BlockInMemory& block : blocks) {
    data.emplace(block.block.name, block.data);
  }
  HashedFile file(directory / name, layout.file_bytes);
  file.append(std::as_bytes(std::span(layout.prefix)));
  for (const TensorEntry& entry : layout.header.tensors) {
    if (entry.end > entry.begin) {
      file.append({data.at(entry.name), static_cast<std::size_t>(entry.end - entry.begin)});
    }
  }
  return file.finish();
}

} // namespace tieshard
