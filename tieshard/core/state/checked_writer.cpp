#include "tieshard/core/state/checked_writer.h"

#include <algorithm>
#include <utility>

#include <fcntl.h>

#include "tieshard/core/base/error.h"

namespace tieshard {
namespace {

/// Batches whose way to the disk is not waited for yet.
constexpr std::size_t kUnderWay = 4;

/// Waits until these bytes are on the disk. A hint: what cannot be done here, fsync does, or says.
void wait_for_write_back(const File& file, const FileExtent& extent) {
  ::sync_file_range(file.descriptor(),
                    static_cast<off_t>(extent.begin),
                    static_cast<off_t>(extent.end - extent.begin),
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

void give_pages_back(const File& file, const FileExtent& extent) {
  ::posix_fadvise(file.descriptor(),
                  static_cast<off_t>(extent.begin),
                  static_cast<off_t>(extent.end - extent.begin),
                  POSIX_FADV_DONTNEED);
}

} // namespace

CheckedWriter::CheckedWriter(const std::filesystem::path& path)
    : file_(File::open_for_writing(path)), reader_(File::open_for_reading(path)), buffer_(1 << 20) {}

void CheckedWriter::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  open_.hash.update(bytes);
  file_.write_at(offset, bytes);
  file_.start_write_back(offset, bytes.size());
  if (!open_.extents.empty() && open_.extents.back().end == offset) {
    open_.extents.back().end += bytes.size();
  } else {
    open_.extents.push_back({offset, offset + bytes.size()});
  }
  open_.bytes += bytes.size();
  if (open_.bytes >= kBatchBytes) {
    close_batch();
  }
}

void CheckedWriter::close_batch() {
  under_way_.push_back(std::exchange(open_, {}));
  if (under_way_.size() > kUnderWay) {
    read_back(under_way_.front());
    under_way_.pop_front();
  }
}

void CheckedWriter::read_back(const Batch& batch) {
  ContentHash hash;
  for (const FileExtent& extent : batch.extents) {
    wait_for_write_back(file_, extent);
    for (std::uint64_t at = extent.begin; at < extent.end; at += buffer_.size()) {
      const std::span<std::byte> piece = std::span(buffer_).first(std::min(buffer_.size(), extent.end - at));
      reader_.read_at(at, piece);
      hash.update(piece);
    }
    give_pages_back(file_, extent);
  }
  if (hash.hex() != batch.hash.hex()) {
    throw PeerError({.code = Code::kExportMismatch,
                     .what = "an export does not read back as written",
                     .where = concat(file_.path().string(), ", from byte ", batch.extents.front().begin, " on"),
                     .why = concat("expected the hash ", batch.hash.hex(), ", got ", hash.hex()),
                     .fix = "check the disk; nothing was published, the staging directory can be removed"});
  }
}

void CheckedWriter::finish() {
  close_batch();
  while (!under_way_.empty()) {
    read_back(under_way_.front());
    under_way_.pop_front();
  }
  file_.sync();
}

} // namespace tieshard
