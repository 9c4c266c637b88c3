#include "tieshard/core/state/hashed_file.h"

#include <algorithm>
#include <vector>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

constexpr std::uint64_t kPieceBytes = 1 << 20;     ///< hashed, and written while it is in the cache
constexpr std::uint64_t kWriteBackBytes = 8 << 20; ///< sent on its way to the disk at once

} // namespace

HashedFile::HashedFile(const std::filesystem::path& path, std::uint64_t bytes)
    : file_(File::create(path, bytes)), announced_(bytes) {}

void HashedFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), kPieceBytes));
    hash_.update(piece);
    file_.write_at(written_, piece);
    written_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (written_ - started_ >= kWriteBackBytes) {
      file_.start_write_back(started_, written_ - started_);
      started_ = written_;
    }
  }
}

FileRecord HashedFile::finish() {
  if (written_ != announced_) {
    throw InternalError({.code = Code::kBug,
                         .what = "a file got another number of bytes than it was laid out for",
                         .where = file_.path().string(),
                         .why = concat("expected ", announced_, " bytes, got ", written_),
                         .fix = "report this with the command that led to it"});
  }
  file_.sync();
  return {.name = file_.path().filename().string(), .bytes = written_, .xxh128 = hash_.hex()};
}

FileRecord record_of(const std::filesystem::path& directory, const std::string& name) {
  const File file = File::open_for_reading(directory / name);
  const std::uint64_t size = file.size();
  ContentHash hash;
  std::vector<std::byte> piece(std::min(size, kPieceBytes));
  for (std::uint64_t done = 0; done < size; done += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), size - done));
    file.read_at(done, piece);
    hash.update(piece);
  }
  return {.name = name, .bytes = size, .xxh128 = hash.hex()};
}

} // namespace tieshard
