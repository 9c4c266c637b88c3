// python/src/export_file_writer.h
//
// One rank's part in writing an exported file: parts of parameters, converted, at their places.
//
// Flow:   python/tieshard/exporting.py -> [this] -> core/state/checked_writer.h, core/io/convert.h
// Source: runtime/state/export_writer.h, which does the same for a module of LibTorch's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tieshard/core/base/dtype.h"
#include "tieshard/core/state/box.h"
#include "tieshard/core/state/checked_writer.h"

namespace tieshard::python {

/// A stored tensor: a box of a parameter, row-major from a byte of the file on.
struct ExportPlace {
  std::string name{};
  tieshard::Box box{};
  std::uint64_t offset = 0; ///< of its first byte in the file
  DType dtype = DType::kF32;
};

class ExportFileWriter {
 public:
  /// Pre: the file is there at its full size. @throws PeerError io-failed; InputError file-not-found
  explicit ExportFileWriter(const std::filesystem::path& path) : writer_(path) {}

  /// Writes what `held`, a part of the parameter that lies row-major at `data`, has of the tensor.
  /// @throws UsageError not-convertible; PeerError disk-full, io-failed, export-mismatch
  void write(const ExportPlace& to, const std::byte* data, DType dtype, const tieshard::Box& held);

  /// Reads back what was written, and makes it durable. Once, last. Returns the number of finite values that became
  /// infinite, by tensor. @throws PeerError io-failed, export-mismatch
  const std::map<std::string, std::int64_t>& finish();

 private:
  CheckedWriter writer_;
  std::vector<std::byte> converted_;
  std::map<std::string, std::int64_t> overflowed_;
};

} // namespace tieshard::python
