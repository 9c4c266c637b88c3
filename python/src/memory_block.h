// python/src/memory_block.h
//
// A rank's part of a tensor in memory of torch's, as Python hands it over.
//
// Flow:   python/tieshard -> [this] -> saving.cpp, exporting.cpp

#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "tieshard/core/base/shape.h"
#include "tieshard/core/state/shard_file_writer.h"

namespace tieshard::python {

/// Name, address of the first element, dtype, shape of the whole tensor, offset and size of the part. The part lies
/// row-major in memory of the host, which lives as long as the call.
using MemoryRow = std::tuple<std::string, std::uintptr_t, std::string, Shape, Shape, Shape>;

/// @throws UsageError bad-flag for a dtype that is none
std::vector<BlockInMemory> blocks_from(const std::vector<MemoryRow>& rows);

} // namespace tieshard::python
