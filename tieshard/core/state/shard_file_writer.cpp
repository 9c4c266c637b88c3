#include "tieshard/core/state/shard_file_writer.h"

#include <map>
#include <string_view>

#include <fcntl.h>

#include "tieshard/core/base/file.h"

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

/// Gives the memory of a durable file's pages back. A run writes checkpoints and does not read them; once they had
/// filled the memory, each further save waited for the kernel to find pages: four times as long as the first.
void leave_page_cache(const std::filesystem::path& path) {
  const File file = File::open_for_reading(path);
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
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
  FileRecord record = file.finish();
  leave_page_cache(directory / name);
  return record;
}

} // namespace tieshard
