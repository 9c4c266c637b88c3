// tieshard/core/base/writable_directory.h
//
// Whether files can be made in a directory, before hours of work end there.
//
// Flow: runtime/train -> [this] -> the kernel

#pragma once

#include <filesystem>
#include <string>

namespace tieshard {

/// Makes a file of a new name in `directory`, which exists, and removes it. Permissions alone do not tell: a mount may
/// be read-only, and root may write where the bits say no.
/// @param flag  that named it, for the message
/// @throws InputError bad-flag, with the kernel's reason
void require_writable_directory(const std::filesystem::path& directory, const std::string& flag);

} // namespace tieshard
