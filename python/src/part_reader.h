// python/src/part_reader.h
//
// Reads this rank's parts of a module's parameters into memory of torch's, or into memory that is made here.
//
// Flow: box_reads.h -> [this] -> core/io/reader.h; model_source_binding.cpp

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tieshard/core/io/not_finite.h"

#include "python/src/box_reads.h"

namespace tieshard::python {

/// One part that is wanted. `target` null: memory is made for it, mapped where the file holds it as it is wanted.
struct Part {
  std::size_t parameter = 0; ///< index into ModelSource::plan().parameters()
  Box box;
  DType dtype = DType::kF32;
  std::byte* target = nullptr; ///< row-major, as many elements as the box has
};

struct PartReadOptions {
  int threads = 1;
  std::uint64_t buffer_bytes = 16 << 20;
  std::uint64_t smallest_mapped = 256 << 10; ///< smaller parts are copied
  bool map = true;
  bool check_values = true;
  std::function<void()> on_chunk{}; ///< called from any reader thread, one call at a time; what it throws ends the read
};

/// Memory that was made for a part; null where it had some or is empty.
struct PartMemory {
  std::byte* data = nullptr;
  std::shared_ptr<void> memory{};
  bool mapped = false;
};

struct PartReadReport {
  std::vector<PartMemory> memory; ///< as the parts
  std::uint64_t bytes_read = 0;   ///< asked from the files, copied
  std::uint64_t bytes_mapped = 0;
  std::vector<NotFinite> not_finite{}; ///< the index is that of the whole parameter
};

/// Reads every part once, in the order of the files, and initialises those that no file holds. A part of an encoded
/// parameter that is cut in several dimensions is decoded by itself in a wider box: one such box is held at a time.
/// @throws PeerError io-failed, file-changed; UsageError not-convertible, bad-slice
PartReadReport read_parts(const ModelSource& source, const std::vector<Part>& parts, const PartReadOptions& options);

} // namespace tieshard::python
