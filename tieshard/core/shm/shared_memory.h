// tieshard/core/shm/shared_memory.h
//
// Memory that several processes of one host map, without a name anywhere: whatever moment they are killed at, nothing
// is left behind.
//
// Flow:   shm_group, runtime/mesh -> [this] -> the kernel
// Source: memfd_create(2), proc(5) on /proc/PID/fd.
//
// A file of /dev/shm would have a name from shm_open until shm_unlink, and a container's /dev/shm is often 64 MB. An
// anonymous memory file has neither trouble: the others open it through /proc while its creator holds it open, and the
// kernel frees it with the last mapping.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tieshard {

/// Where another process of this host finds the memory.
struct SharedMemoryAddress {
  std::int64_t process = 0;
  int descriptor = -1;
  std::uint64_t bytes = 0;
  std::uint64_t token = 0; ///< random; stands in the memory's first bytes too, so that no other file is taken for it

  /// "4711 5 1048576 9187..." for a store, and back. @throws PeerError io-failed for another text
  std::string to_text() const;
  static SharedMemoryAddress from_text(const std::string& text);
};

/// One mapping, readable and writable, unmapped on destruction. The first kHeaderBytes belong to this class.
class SharedMemory {
 public:
  static constexpr std::size_t kHeaderBytes = 64;
  /// The kernel would hand out any amount until nothing is left for anybody.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

  /// Zeroed memory with `bytes` behind the header, all of it reserved now: no later access can fail for want of memory.
  /// @throws PeerError io-failed, also for more than kMostBytes
  static std::shared_ptr<SharedMemory> create(std::uint64_t bytes);

  /// Maps what another process created. It must not have called close_descriptor() yet.
  /// @throws PeerError io-failed (no /proc, another user's process, a process of another container)
  static std::shared_ptr<SharedMemory> open(const SharedMemoryAddress& address);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  /// The bytes behind the header, aligned to 64.
  std::byte* data() const noexcept {
    return mapping_ + kHeaderBytes;
  }
  std::uint64_t size() const noexcept {
    return bytes_ - kHeaderBytes;
  }

  /// For the other processes. Only of memory that this process created.
  SharedMemoryAddress address() const;

  /// After this nobody else can open it. To be called once all have.
  void close_descriptor() noexcept;

 private:
  SharedMemory(std::byte* mapping, std::uint64_t bytes, int descriptor)
      : mapping_(mapping), bytes_(bytes), descriptor_(descriptor) {}

  std::byte* mapping_;
  std::uint64_t bytes_; ///< header included
  int descriptor_;
};

} // namespace tieshard
