// tieshard/core/doctor/file_check.h
//
// When a directory could not be opened as a whole: each of its files alone, so that every broken one is named at once.
//
// Flow: doctor.cpp -> [this] -> checkpoint

#pragma once

#include <filesystem>

#include "tieshard/core/checkpoint/safetensors_file.h"
#include "tieshard/core/doctor/finding_list.h"

namespace tieshard {

/// Reads config.json as far as its family asks for fields.
void check_config(const std::filesystem::path& directory, FindingList& findings);

/// Opens each weights file that the directory has: model.safetensors, the shards of the index, and files named as
/// shards are where there is no index that can be read.
void check_weight_files(const std::filesystem::path& directory, const SafetensorsLimits& limits, FindingList& findings);

} // namespace tieshard
