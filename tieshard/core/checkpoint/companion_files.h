// tieshard/core/checkpoint/companion_files.h
//
// What stands beside configuration and weights of a Hugging Face directory: the tokenizer's, generation's and similar
// files.
//
// Flow:   core/state, core/adapters, runtime/state -> [this]
// Source: transformers' save_pretrained of tokenizers, processors and generation settings.

#pragma once

#include <filesystem>
#include <vector>

namespace tieshard {

/// Paths of those files, sorted. Left out: config.json and the weights' index, which whoever writes weights makes;
/// hidden files; an adapter's files; manifest.json and trainer.json of a training checkpoint.
/// @throws InputError file-unreadable
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& directory);

/// Copies them into `to`, durably. @throws InputError file-unreadable; PeerError io-failed
void copy_companion_files(const std::filesystem::path& from, const std::filesystem::path& to);

} // namespace tieshard
