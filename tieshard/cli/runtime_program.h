// tieshard/cli/runtime_program.h
//
// Finds tieshard-runtime, the program with torch in it, and becomes it.
//
// Flow: app, demo -> [this] -> the kernel

#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tieshard::cli {

/// True for the verbs that compute: train, eval, generate, forward.
bool is_runtime_verb(const std::string& verb);

/// This program's own file. @throws PeerError io-failed
std::filesystem::path own_program();

/// tieshard-runtime beside this program. @throws InputError file-not-found
std::filesystem::path runtime_program();

/// Replaces this process by tieshard-runtime with `arguments`. Returns only by throwing.
/// @throws InputError file-not-found, file-unreadable (it cannot be executed)
[[noreturn]] void hand_over_to_runtime(const std::vector<std::string>& arguments);

/// Runs `program` with `arguments` as a child and waits for it; its output goes where this program's goes, or
/// into the file `output`, which is made anew. The child ends when this process does.
///
/// @return its exit status; 128 + the signal that ended it
/// @throws PeerError io-failed when it cannot be started, or `output` not be made
int run_program(const std::filesystem::path& program,
                const std::vector<std::string>& arguments,
                const std::filesystem::path& output = {});

} // namespace tieshard::cli
