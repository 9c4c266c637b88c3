// tieshard/cli/lora_flag.h
//
// --lora r=16,alpha=32,targets=q_proj,v_proj and the flags beside it.
//
// Flow: cli/runtime (train, forward), merge_adapter -> [this] -> core/adapters/lora_config.h

#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tieshard/core/adapters/lora_config.h"

namespace CLI { // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace tieshard::cli {

/// KEY=VALUE pairs with commas between them; what has no key continues the list before it. Keys: r, alpha, dropout,
/// targets (names, or all-linear), targets-regex, exclude, save (modules_to_save), layers, init (kaiming, gaussian),
/// rslora (true, false).
/// @throws InputError bad-flag
LoraConfig lora_flag(const std::string& text);

/// "both", "named" or "refuse"; nothing for "".
std::optional<TiedTarget> tied_target_flag(const std::string& text);

/// --lora-tied, for tied_target_flag.
void add_lora_tied_flag(CLI::App& verb, std::string& tied);

/// --adapter DIR and --lora-tied.
void add_adapter_flags(CLI::App& verb, std::filesystem::path& adapter, std::string& tied);

} // namespace tieshard::cli
