// tieshard/core/state/numbered_files.h
//
// Files that number themselves, "model-00001-of-00002.safetensors": are all of them there?
//
// Flow:   sharded_files -> [this]
// Source: transformers save_pretrained; PyTorch DCP's shard-RRRRR-model-KKKKK-of-NNNNN.safetensors.

#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tieshard {

/// Of each "-of-NNNNN" that occurs, the numbers 1 to NNNNN have to occur, under any rank.
/// @param names  of the files of `directory`, which is for errors
/// @throws InputError shard-missing (names the numbers)
void require_numbered_files(const std::filesystem::path& directory, const std::vector<std::string>& names);

} // namespace tieshard
