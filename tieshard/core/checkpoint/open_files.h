// tieshard/core/checkpoint/open_files.h
//
// Opens many safetensors files at once: their headers are read and checked by several threads.
//
// Flow: shard_check -> [this] -> safetensors_file

#pragma once

#include <filesystem>
#include <vector>

#include "tieshard/core/checkpoint/safetensors_file.h"

namespace tieshard {

/// The opened files, in the order of `paths`. As many threads as the machine has cores, at most one a file.
/// @throws InputError what SafetensorsFile::open throws for the first of `paths` that is refused, whichever thread is
///         faster
std::vector<SafetensorsFile> open_files(const std::vector<std::filesystem::path>& paths,
                                        const SafetensorsLimits& limits);

} // namespace tieshard
