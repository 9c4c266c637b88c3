// tieshard/core/io/mapped_guard.h
//
// Makes an error of what would be a SIGBUS: a mapped file that was cut, or whose disk failed, is read as zeros and
// remembered until somebody asks.
//
// Flow: mapped_range.h -> [this] -> asked at the end of a load, once in each training step, after a forward, at an
// export
//
// Note: [Handler] The process has one handler for SIGBUS. It takes faults inside guarded ranges only and passes all
//       others to the handler that was there before, or to the default action. A library that installs its own later
//       comes first from then on; the next guard or question puts this one in front again, with that one behind it.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace tieshard {

/// What the handler knows of one mapped range. Lives as long as the process; used again after a guard is gone.
struct GuardedRange;

/// Guards the pages of one mapping as long as it lives. Movable.
class MappedGuard {
 public:
  MappedGuard() = default;

  /// @param pages  page-aligned, `bytes` long, mapped from byte `offset` of `file` on
  MappedGuard(const std::filesystem::path& file, std::uint64_t offset, const std::byte* pages, std::uint64_t bytes);

  MappedGuard(MappedGuard&& other) noexcept;
  MappedGuard& operator=(MappedGuard&& other) noexcept;
  MappedGuard(const MappedGuard&) = delete;
  MappedGuard& operator=(const MappedGuard&) = delete;
  ~MappedGuard();

  /// @throws PeerError file-changed when a page of this range could not be read since it was guarded
  void require_intact() const;

 private:
  GuardedRange* range_ = nullptr;
};

/// Cheap enough for each step: a number is compared, and the kernel is asked for the handler.
/// @throws PeerError file-changed, naming file and byte, when a page of any range that is still guarded could not be
///         read: zeros were read in its place and in that of all later pages of the range
void require_mappings_intact();

} // namespace tieshard
